/**
 * Ranks: process groups, meshes, and the planes beneath them.
 *
 * @module
 */

export { ProcessGroup } from "../src/comm/process_group.ts";
export { DeviceMesh, deviceMesh, type MeshShape } from "../src/comm/mesh.ts";
export { cutParameters } from "../src/parallel/cut.ts";
export type { Call, CallKind, Phase } from "../src/comm/call.ts";
export type { FlightRecord, RecordedCall, RecordedRank } from "../src/comm/flight_record.ts";
export type { ControlPlane } from "../src/comm/control_plane.ts";
export type { DataPlane, ElementRange, ReduceScatterArgs, Work } from "../src/comm/data_plane.ts";
export type { GatherWindow } from "../src/comm/gather_window.ts";
export { type Backend, openProcessGroup, type ProcessGroupOptions } from "../src/comm/registry.ts";

// Types that the types above refer to.
export type { CALL_KINDS, PHASES } from "../src/comm/call.ts";
export type { ControlOptions, Place } from "../src/comm/control_plane.ts";
export type { AllReduceArgs, GatherMemory, Transfer, Window } from "../src/comm/data_plane.ts";
export type { AnnouncedWindow } from "../src/comm/gather_window.ts";
export type { MeshAxis } from "../src/comm/mesh.ts";
export type { CallListener } from "../src/comm/process_group.ts";
export type { AllReduceOptions, ReduceScatterOptions } from "../src/comm/reductions.ts";
export type { BACKENDS } from "../src/comm/registry.ts";
export type { HostsPlace } from "../src/comm/hosts/join.ts";
export type { HostsJoinOptions } from "../src/comm/hosts/join.ts";
export type { ShmOptions } from "../src/comm/data/shm.ts";
export type { StagingOptions } from "../src/comm/data/sizes.ts";
export type { DryOptions } from "../src/comm/data/dry.ts";
export type { LoopbackWorld } from "../src/comm/control/workers.ts";
export type { ShmJoinOptions } from "../src/comm/control/shm_join.ts";

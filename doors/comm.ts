/**
 * Ranks: process groups, meshes, and the planes beneath them.
 *
 * @module
 */

export { type AllReduceOptions, ProcessGroup } from "../src/comm/process_group.ts";
export { DeviceMesh, deviceMesh, type MeshShape } from "../src/comm/mesh.ts";
export type { Call, CallKind, Phase } from "../src/comm/call.ts";
export type { ControlPlane } from "../src/comm/control_plane.ts";
export type { DataPlane, ElementRange, ReduceScatterArgs, Work } from "../src/comm/data_plane.ts";
export type { GatherWindow } from "../src/comm/gather_window.ts";
export { type Backend, openProcessGroup, type ProcessGroupOptions } from "../src/comm/registry.ts";

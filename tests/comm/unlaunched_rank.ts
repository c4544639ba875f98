/** A rank that opens a group by its environment's variables. @module */
import { openProcessGroup } from "../../src/comm/registry.ts";
import { openCommDevice } from "../support/comm_device.ts";

using group = await openProcessGroup({ device: await openCommDevice(2 ** 24) });
group.exchange(new Uint8Array(1), "test");

/**
 * A rank that joins, does one all-reduce and exits.
 *
 * @module
 */
import { float32 } from "fullyshard";
import { ones } from "fullyshard/nn";
import { openDevice } from "fullyshard/device";
import { openProcessGroup } from "fullyshard/comm";

const device = await openDevice("cpu");
using group = await openProcessGroup({ device });
using x = ones(device, [1]);
group.allReduce(x.ptr, 1, float32, { unit: "one" }).wait();
if (x.item() !== group.size) throw new Error(`The sum of ${group.size} ones is ${x.item()}`);

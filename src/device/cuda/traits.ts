/**
 * What is the same of every card, whether or not there is one: for the device, and for dry runs on machines that have none.
 *
 * @module
 */
import { instantiateKernels, loadKernelModule } from "../../../wasm/mod.ts";
import { type Device, devicePtr, type PortableMath } from "../device.ts";
import type { DryModel } from "../dry/device.ts";
import { isKernelName, KERNELS } from "../kernels/table.ts";
import { portableMath } from "../wasm/kernels.ts";
import { LAUNCHES, type Launches, launchOf } from "./launches.ts";
import { scratchBytesReader } from "./spread.ts";

/** Pages of the memory in which the host's exact functions work. */
const MATH_PAGES = 256;

/**
 * Logits that a fused loss computes at a time. The gradient of the weight is read and written once for each such part, so
 * that few rows at a time would cost a card more than the products do: with 128 thousand tokens a part is 1046 rows.
 */
const LOGITS_AT_ONCE = 2 ** 27;

/** Where the allocator of a card that is not there begins, and its status record below that: not at 0, which is "none". */
const [FIRST_ADDRESS, STATUS_ADDRESS] = [512, 256];

/** What follows from the kernels that are written. */
export type CardTraits = Required<Pick<Device, "lacks" | "scratchBytes">> & { readonly logitsAtOnce: number };

/** What cards with such kernels lack, and take. */
export function cardTraits(launches: Launches): CardTraits {
  const unwritten = Object.keys(KERNELS).filter(isKernelName).filter((name) => launchOf(name, launches) === undefined);
  const scratchBytes = scratchBytesReader(launches);
  return { lacks: new Set(unwritten), logitsAtOnce: LOGITS_AT_ONCE, scratchBytes };
}

/** The host's exact functions beside a card. */
export async function openCardMath(): Promise<PortableMath> {
  const memory = new WebAssembly.Memory({ initial: MATH_PAGES, maximum: MATH_PAGES });
  return portableMath(instantiateKernels(await loadKernelModule("strict"), memory));
}

/** A card that need not be here, for a dry device to stand for. */
export async function openAbsentCard(): Promise<DryModel> {
  return {
    ...cardTraits(LAUNCHES),
    name: "cuda",
    mathName: "cuda",
    detail: "a card that need not be here",
    math: await openCardMath(),
    allocator: { begin: FIRST_ADDRESS },
    status: { ptr: devicePtr(STATUS_ADDRESS), isLate: true },
  };
}

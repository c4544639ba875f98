/**
 * Traits that all cards share: for the device, and for dry runs on machines without a card.
 *
 * @module
 */
import { instantiateKernels, loadKernelModule } from "../../../wasm/mod.ts";
import { devicePtr, type PortableMath } from "../device.ts";
import type { DryModel } from "../dry/device.ts";
import { isKernelName, KERNELS } from "../kernels/table.ts";
import { type DeviceTraits, PLAIN_TRAITS } from "../traits.ts";
import { portableMath } from "../wasm/kernels.ts";
import { LAUNCHES, type Launches, launchOf } from "./launches.ts";
import { scratchBytesReader } from "./spread.ts";

/** Pages of the memory of the host's exact functions. */
const MATH_PAGES = 256;

/**
 * Logits that a fused loss computes at a time. The gradient of the weight is read and written once for each such part, so parts
 * of few rows would cost more than the products: with a vocabulary of 128 thousand, a part is 1046 rows.
 */
const LOGITS_PER_CHUNK = 2 ** 27;

/** First address of an absent card's allocator, and of its status record: not 0, which is no address. */
const [FIRST_ADDRESS, STATUS_ADDRESS] = [512, 256];

/** Traits of cards with these kernels, whether a card is there or not. */
export function cardTraits(launches: Launches): DeviceTraits {
  const unwritten = Object.keys(KERNELS).filter(isKernelName).filter((name) => launchOf(name, launches) === undefined);
  const missingKernels = new Set(unwritten);
  return { ...PLAIN_TRAITS, backend: "nccl", missingKernels, logitsPerChunk: LOGITS_PER_CHUNK };
}

/** The host's exact functions for a card. */
export async function openCardMath(): Promise<PortableMath> {
  const memory = new WebAssembly.Memory({ initial: MATH_PAGES, maximum: MATH_PAGES });
  return portableMath(instantiateKernels(await loadKernelModule("strict"), memory));
}

/** An absent card, for a dry device to stand for. */
export async function openAbsentCard(): Promise<DryModel> {
  return {
    traits: cardTraits(LAUNCHES),
    scratchBytes: scratchBytesReader(LAUNCHES),
    name: "cuda",
    mathName: "cuda",
    detail: "a card that need not be here",
    math: await openCardMath(),
    allocator: { begin: FIRST_ADDRESS },
    status: { ptr: devicePtr(STATUS_ADDRESS), isLate: true },
  };
}

/**
 * The double of cuDNN against mistakes that somebody might make: in what a descriptor is told, in the order in which
 * descriptors are made, in what a plan is given, and in memory.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Descriptors } from "../../../src/device/cuda/cudnn/descriptors.ts";
import { makePlan, packOf, type SdpaPlan, type SdpaShape, uidOf } from "../../../src/device/cuda/cudnn/sdpa.ts";
import { openCudnn } from "../../../src/device/cuda/cudnn/version.ts";
import { type CudaDevice, openCudaDevice } from "../../../src/device/cuda/device.ts";
import { devicePtr } from "../../../src/device/device.ts";
import { bfloat16 } from "../../../src/dtype.ts";
import { NativeError } from "../../../src/errors.ts";
import { openProvider } from "../../../src/ffi/mod.ts";
import type { Handle, NativeAddress } from "../../../src/ffi/types.ts";
import { buildCudaTwin, type CudaTwin, lackingForTwin, twinReports } from "../../native/cuda/build.ts";

const skip = lackingForTwin();

const SHAPE: SdpaShape = {
  ...{ direction: "forward", dtype: bfloat16, batch: 1, seqQ: 4, seqK: 4, heads: 2, kvHeads: 1, headDim: 8 },
  ...{ valueDim: 8, strideQ: 16, strideK: 8, strideV: 8, causal: true },
};

/** The objects from which a mistake is made. */
interface Place {
  readonly twin: CudaTwin;
  readonly device: CudaDevice;
  readonly descriptors: Descriptors;
  readonly handle: Handle<"cudnnHandle_t">;
  readonly plan: SdpaPlan;
  /** Runs the plan with these addresses by unique id, and a workspace. */
  readonly run: (addresses: ReadonlyMap<number, number>, workspace: number) => void;
  /** The objects of a correct call; they are freed with the device. */
  readonly addresses: ReadonlyMap<number, number>;
  readonly workspace: number;
}

async function play(mistake: (place: Place) => void): Promise<void> {
  const twin = await buildCudaTwin();
  const device = await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 22 });
  const cudnn = await openCudnn(await openProvider(), twin.environment);
  const { symbols, provider } = cudnn;
  const place = provider.out("cudnnHandle_t");
  symbols.cudnnCreate(place);
  symbols.cudnnSetStream(place.value, device.streamHandle);
  const descriptors = new Descriptors(cudnn);
  try {
    const plan = makePlan(descriptors, SHAPE, { handle: place.value });
    assert.ok(typeof plan !== "string", String(plan));
    const scalars = new Float32Array(new ArrayBuffer(8));
    scalars.set([0.25, -Infinity]);
    const scalarsAt = provider.numberOf(provider.addressOf(scalars));
    const addresses = new Map(plan.tensors.map((name) => {
      const ofHost = { scale: scalarsAt, hidden: scalarsAt + 4 } as const;
      return [
        uidOf(name),
        name === "scale" || name === "hidden" ? ofHost[name] : device.allocator.allocate(1024, name),
      ];
    }));
    const workspace = device.allocator.allocate(plan.workspaceBytes, "workspace");
    for (const [uid, at] of addresses) {
      if (uid !== uidOf("scale") && uid !== uidOf("hidden")) device.clear(devicePtr(at), 1024);
    }
    const run: Place["run"] = (given, scratch) =>
      descriptors.lend(
        "CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR",
        packOf([...given.keys()], [...given.values()], scratch),
        (pack) => symbols.cudnnBackendExecute(place.value, plan.plan, pack),
      );
    mistake({ twin, device, descriptors, handle: place.value, plan, run, addresses, workspace });
    assert.ok(scalars.length > 0); // which the addresses are of
  } finally {
    descriptors[Symbol.dispose]();
    symbols.cudnnDestroy(place.value);
    device.dispose();
  }
}

/** A tensor of four numbers. */
function tensorOf({ descriptors }: Place): NativeAddress {
  return descriptors.make("CUDNN_BACKEND_TENSOR_DESCRIPTOR", [
    ["CUDNN_ATTR_TENSOR_UNIQUE_ID", { integers: [77] }],
    ["CUDNN_ATTR_TENSOR_DATA_TYPE", { dataType: "CUDNN_DATA_FLOAT" }],
    ["CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT", { integers: [16] }],
    ["CUDNN_ATTR_TENSOR_DIMENSIONS", { integers: [1, 1, 1, 4] }],
    ["CUDNN_ATTR_TENSOR_STRIDES", { integers: [4, 4, 4, 1] }],
  ]);
}

function changed(addresses: ReadonlyMap<number, number>, uid: number, to: number): ReadonlyMap<number, number> {
  return new Map([...addresses, [uid, to]]);
}

/** Mistakes that a call refuses, with the words that it has for them. */
const REFUSED: readonly (readonly [what: string, mistake: (place: Place) => void, said: RegExp])[] = [
  [
    "an attribute of another type",
    ({ descriptors }) =>
      descriptors.make("CUDNN_BACKEND_TENSOR_DESCRIPTOR", [["CUDNN_ATTR_TENSOR_UNIQUE_ID", { flag: true }]]),
    /CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE \(attribute 906 has type 3\): cudnnBackendSetAttribute\(/,
  ],
  [
    "an attribute of another count",
    ({ descriptors }) =>
      descriptors.make("CUDNN_BACKEND_TENSOR_DESCRIPTOR", [["CUDNN_ATTR_TENSOR_DIMENSIONS", { integers: [1, 2] }]]),
    /attribute 902 of another count/,
  ],
  [
    "an attribute of another descriptor",
    ({ descriptors }) =>
      descriptors.make("CUDNN_BACKEND_TENSOR_DESCRIPTOR", [["CUDNN_ATTR_OPERATIONGRAPH_OPS", { integers: [1] }]]),
    /attribute 801 is none of kind 17/,
  ],
  [
    "a missing attribute",
    ({ descriptors }) =>
      descriptors.make("CUDNN_BACKEND_TENSOR_DESCRIPTOR", [["CUDNN_ATTR_TENSOR_UNIQUE_ID", { integers: [1] }]]),
    /attribute 90\d is missing/,
  ],
  [
    "an attribute after the end",
    (place) =>
      place.descriptors.cudnn.symbols.cudnnBackendSetAttribute(tensorOf(place), 906, 3, 1, BigInt64Array.of(5n)),
    /an attribute of a descriptor that is finalized/,
  ],
  [
    "a part that is not finalized",
    ({ descriptors }) => {
      const { symbols, provider } = descriptors.cudnn;
      const [operation, graph] = [provider.out("address"), provider.out("address")];
      symbols.cudnnBackendCreateDescriptor(44, operation);
      symbols.cudnnBackendCreateDescriptor(15, graph);
      try {
        const parts = BigUint64Array.of(BigInt(provider.numberOf(operation.value)));
        symbols.cudnnBackendSetAttribute(graph.value, 801, 15, 1, parts);
      } finally {
        for (const { value } of [graph, operation]) symbols.cudnnBackendDestroyDescriptor(value);
      }
    },
    /CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED \(attribute 801 is not finalized\)/,
  ],
  [
    "a part of another kind",
    (place) =>
      place.descriptors.make("CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR", [
        ["CUDNN_ATTR_OPERATIONGRAPH_OPS", { descriptors: [tensorOf(place)] }],
      ]),
    /CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE \(attribute 801 of another kind\)/,
  ],
  [
    "heads that do not divide",
    ({ descriptors, handle }) => void makePlan(descriptors, { ...SHAPE, heads: 3, kvHeads: 2 }, { handle }),
    /CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH \(q, k, v and o do not fit\)/,
  ],
  [
    "a tensor that is not bound",
    ({ run, addresses, workspace }) => run(new Map([...addresses].slice(1)), workspace),
    /CUDNN_STATUS_BAD_PARAM_NULL_POINTER \(tensor 1 has no memory\)/,
  ],
  [
    "a tensor too many",
    ({ run, addresses, workspace }) => run(changed(addresses, 99, 4096), workspace),
    /a tensor that the plan does not have/,
  ],
  [
    "a tensor that is not aligned",
    ({ run, addresses, workspace }) =>
      run(changed(addresses, uidOf("k"), (addresses.get(uidOf("k")) ?? NaN) + 2), workspace),
    /CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER \(tensor 2 is not aligned\)/,
  ],
  ["no workspace", ({ run, addresses }) => run(addresses, 0), /the workspace is missing or not aligned/],
];
for (const [what, mistake, said] of REFUSED) {
  test(`the double of cuDNN refuses ${what}`, { skip }, async () => {
    await play((place) => {
      assert.throws(() => mistake(place), (error) => {
        assert.ok(error instanceof NativeError, String(error));
        assert.match(error.message, said);
        return true;
      });
      place.run(place.addresses, place.workspace);
      assert.equal(twinReports(place.twin), "");
    });
  });
}

/** Mistakes with memory, which the detector of races finds when the work runs. */
const RACES: readonly (readonly [what: string, mistake: (place: Place) => void, said: RegExp])[] = [
  ["a workspace that is freed too early", ({ run, addresses, workspace, device }) => {
    device.allocator.free(devicePtr(workspace));
    run(addresses, workspace);
  }, /attention by cuDNN/],
  ["an output that another stream reads meanwhile", ({ run, addresses, workspace, device }) => {
    const o = devicePtr(addresses.get(uidOf("o")) ?? NaN);
    run(addresses, workspace);
    const copy = device.allocator.allocate(1024, "copy");
    const made = device.streams.get("compute").record();
    run(addresses, workspace);
    device.streams.on("gather", () => {
      device.streams.get("gather").wait(made);
      device.copy(copy, o, 64);
    });
  }, /attention by cuDNN/],
  ["keys that another stream writes meanwhile", ({ run, addresses, workspace, device }) => {
    const made = device.streams.get("compute").record();
    device.streams.on("gather", () => {
      device.streams.get("gather").wait(made);
      device.clear(devicePtr(addresses.get(uidOf("k")) ?? NaN), 64);
    });
    run(addresses, workspace);
  }, /attention by cuDNN/],
];
for (const [what, mistake, said] of RACES) {
  test(`the double of CUDA finds ${what} in attention by cuDNN`, { skip }, async () => {
    await play((place) => {
      mistake(place);
      assert.match(twinReports(place.twin), said);
    });
  });
}

/**
 * The errors of opening a CUDA device where the runtime, the driver or the card is missing, and the devices that the public door opens.
 *
 * @module
 */
import assert from "node:assert/strict";
import { mkdirSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { CudaDevice, openCudaDevice } from "../../../src/device/cuda/device.ts";
import { devicePtr } from "../../../src/device/device.ts";
import { openDevice } from "../../../src/device/registry.ts";
import { LibraryNotFoundError, OutOfMemoryError, UnsupportedError, UseAfterDisposeError } from "../../../src/errors.ts";
import { openPosix } from "../../../src/ffi/posix.ts";
import { environmentFrom } from "../../../src/runtime/env.ts";
import { tensor } from "../../../src/tensor/create.ts";
import { scope } from "../../../src/tensor/scope.ts";
import { buildCudaTwin, lackingForTwin, twinLog, twinReports } from "../../native/cuda/build.ts";
import { temporaryDirectory } from "../../support/temporary.ts";

const lacking = lackingForTwin();
const twin = lacking === undefined ? await buildCudaTwin() : undefined;

test("openCudaDevice() without the CUDA runtime says how to install it", async () => {
  const environment = environmentFrom((name) =>
    name === "FULLYSHARD_CUDART_LIBRARY" ? "/nowhere/libcudart.so" : undefined
  );
  await assert.rejects(openCudaDevice(0, { environment }), (error) => {
    assert.ok(error instanceof LibraryNotFoundError, String(error));
    assert.match(error.message, /^Cannot open CUDA runtime\. Install it with 'pip install nvidia-cuda-runtime'/);
    return true;
  });
});

/** The parts that the double is set to lack, and the error for each. */
const MISSING: readonly (readonly [what: string, state: number, said: RegExp])[] = [
  [
    "a driver",
    1,
    /^Cannot open device 'cuda:0': there is no NVIDIA driver\. Install NVIDIA's driver of CUDA 12 or newer/,
  ],
  [
    "a new driver",
    2,
    /the NVIDIA driver is one of CUDA 12, the CUDA runtime \(.+\) needs one of CUDA 13\. Install a newer driver/,
  ],
  ["a card", 3, /^Cannot open device 'cuda:0': the driver shows no card\. .*cudaErrorNoDevice/],
];
for (const [what, state, said] of MISSING) {
  test(`openCudaDevice() without ${what} says so`, { skip: lacking }, async () => {
    assert.ok(twin !== undefined);
    twin.runtime.symbols.twinSetMissing(state);
    try {
      await assert.rejects(openCudaDevice(0, { environment: twin.environment }), (error) => {
        assert.ok(error instanceof UnsupportedError, String(error));
        assert.match(error.message, said);
        return true;
      });
    } finally {
      twin.runtime.symbols.twinSetMissing(0);
    }
  });
}

test(
  "openDevice('cuda:0') opens a card by the public door, and 'cuda:1' says how many there are",
  { skip: lacking },
  async () => {
    const names = ["FULLYSHARD_CUDART_LIBRARY", "FULLYSHARD_NVRTC_LIBRARY", "FULLYSHARD_CUBLASLT_LIBRARY"] as const;
    for (const name of names) process.env[name] = twin?.environment.text(name) ?? assert.fail();
    try {
      const device = await openDevice("cuda:0");
      assert.ok(device instanceof CudaDevice);
      assert.deepEqual([device.name, device.mathName], ["cuda:0", "cuda"]);
      assert.match(device.detail, /^CUDA kernels by NVRTC 13\.0 for sm_90 \(.+\/cudart\.so\)$/);
      device.dispose();
      await assert.rejects(
        openDevice("cuda:1"),
        /Cannot open device 'cuda:1': the driver shows 1 card\. See 'nvidia-smi'/,
      );
    } finally {
      for (const name of names) delete process.env[name];
    }
  },
);

test("a CUDA device copies what overlaps, tells what a byte too many would take, and frees in the order of streams", {
  skip: lacking,
}, async () => {
  assert.ok(twin !== undefined);
  const device = await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 24 });
  const { allocator, streams } = device;
  const block = allocator.allocate(3 * 2 ** 20, "block"); // more than one piece
  const bytes = Uint8Array.from({ length: 3 * 2 ** 20 }, (_, i) => i % 251);
  device.copyIn(block, bytes);
  device.copy(block, block, 10);
  device.copy(devicePtr(block + 1000), block, 2 ** 20);
  bytes.copyWithin(1000, 0, 2 ** 20);
  const found = new Uint8Array(bytes.byteLength);
  device.copyOut(found, block);
  assert.deepEqual(found, bytes);
  assert.throws(() => allocator.allocate(2 ** 24, "too much"), (error) => {
    assert.ok(error instanceof OutOfMemoryError);
    assert.match(error.message, /Largest owners: block: 3\.0 MiB/);
    return true;
  });
  const event = streams.get("compute").record();
  streams.on("gather", () => {
    streams.get("gather").wait(event);
    device.copy(devicePtr(block + 2 ** 20), block, 1024);
    allocator.free(block);
  });
  const again = streams.get("gather").record();
  assert.equal(again.done, false);
  device.synchronize();
  assert.equal(again.done, true);
  assert.equal(allocator.stats.inUse, 0);
  device.dispose();
  assert.equal(twinReports(twin), "");
});

test("a CUDA device gives all memory back when it is disposed, and is used no more", { skip: lacking }, async () => {
  assert.ok(twin !== undefined);
  const device = await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 24 });
  twinLog(twin);
  const x = tensor(device, [1, 2, 3]);
  const sum = x.add(1);
  const point = device.streams.get("gather").record();
  device.dispose();
  const names = twinLog(twin).map(({ name }) => name);
  const count = (what: string): number => names.filter((name) => name === what).length;
  // The status, which was there before, goes too.
  assert.deepEqual([count("allocation"), count("free")], [2, 3]);
  const uses: readonly (() => unknown)[] = [
    () => sum.add(1),
    () => sum.toArray(),
    () => tensor(device, [1]),
    () => device.clear(x.ptr, 4),
    () => device.synchronize(),
    () => device.streams.get("compute").record(),
  ];
  for (const use of uses) {
    assert.throws(use, (error) => {
      assert.ok(error instanceof UseAfterDisposeError, String(error));
      assert.equal(error.message, "Cannot use a CUDA device after it was disposed");
      return true;
    });
  }
  assert.equal(point.done, true);
  x.dispose();
  sum.dispose();
  device.dispose();
  assert.equal(twinReports(twin), "");
});

test("one card at a time is open in a thread, as CUDA knows no more", { skip: lacking }, async () => {
  assert.ok(twin !== undefined);
  const { environment } = twin;
  const posix = await openPosix();
  posix.setVariable("TWIN_CARDS", "2");
  try {
    const first = await openCudaDevice(0, { environment });
    const again = await openCudaDevice(0, { environment });
    first.dispose();
    await assert.rejects(openCudaDevice(1, { environment }), (error) => {
      assert.ok(error instanceof UnsupportedError);
      assert.match(
        error.message,
        /^Cannot open device 'cuda:1': this thread works on 'cuda:0', .* Dispose that device first/,
      );
      return true;
    });
    again.dispose();
    const second = await openCudaDevice(1, { environment });
    assert.deepEqual([...tensor(second, [1, 2]).add(1).toArray()], [2, 3]);
    second.dispose();
  } finally {
    posix.libc.symbols.unsetenv("TWIN_CARDS");
  }
  assert.equal(twinReports(twin), "");
});

/** The states of a file of compiled code. */
const DAMAGES: readonly (readonly [what: string, damage: (file: string) => void])[] = [
  ["is empty", (file) => writeFileSync(file, "")],
  ["was cut off", (file) => truncateSync(file, 5000)],
  ["has another bit", (file) => {
    const bytes = readFileSync(file);
    bytes[1000] = (bytes[1000] ?? 0) ^ 1;
    writeFileSync(file, bytes);
  }],
  ["is no code", (file) => writeFileSync(file, new Uint8Array(3000).fill(7))],
  ["is a folder", (file) => {
    rmSync(file);
    mkdirSync(`${file}/inside`, { recursive: true });
  }],
];
test("a kernel whose kept file is damaged is compiled anew, and kept", { skip: lacking }, async () => {
  using directory = temporaryDirectory();
  const variables = { ...twin?.variables, FULLYSHARD_KERNEL_CACHE: directory.path };
  const environment = environmentFrom((name) => Object.entries(variables).find(([key]) => key === name)?.[1]);
  const compute = async (): Promise<number[]> => {
    const device = await openCudaDevice(0, { environment, memoryBytes: 2 ** 20 });
    using _scope = scope();
    const product = [...tensor(device, [1, 2, 3]).mul(tensor(device, [4, 5, 6])).toArray()];
    device.dispose();
    return product;
  };
  assert.deepEqual(await compute(), [4, 10, 18]);
  const [name, ...others] = readdirSync(directory.path);
  assert.ok(name !== undefined && name.startsWith("binary-") && others.length === 0, [name, ...others].join());
  const file = directory.file(name);
  const whole = readFileSync(file);
  for (const [what, damage] of DAMAGES) {
    damage(file);
    assert.deepEqual(await compute(), [4, 10, 18], `a file that ${what}`);
    if (what !== "is a folder") assert.ok(readFileSync(file).equals(whole), `a file that ${what} is not replaced`);
  }
});

/** `fullyshard config` writes a file by answers, and `fullyshard launch` starts ranks as a file says. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { describe } from "node:test";
import { fileURLToPath } from "node:url";
import { readAccelerateConfig } from "../../src/accelerate/read.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { longTest, sharedTest as it } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { flagsIn, losses } from "../train/runs.ts";

const pathOf = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const bin = pathOf("../../bin/fullyshard.mjs");
const tiny = pathOf("../train/scripts/tiny.ts");

/** The outcome of a command. */
interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function command(args: readonly string[], input: string, cwd: string): Ended {
  const all = [bin, "--runtime", RUNTIME, ...args];
  const { status, stdout, stderr } = spawnSync("node", all, { encoding: "utf8", input, cwd });
  return { code: status, stdout, stderr };
}

const usual = `compute_environment: LOCAL_MACHINE
distributed_type: FSDP
num_machines: 1
mixed_precision: "no"
num_processes: 1
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_cpu_ram_efficient_loading: true
  fsdp_activation_checkpointing: false
  fsdp_offload_params: false
`;

describe("fullyshard config", () => {
  it("writes the usual answers where nothing is asked, or each is empty", async () => {
    using folder = temporaryDirectory();
    const { code, stdout, stderr } = command(["config", "--defaults"], "", folder.path);
    assert.equal(code, 0, stderr);
    assert.match(stdout, /^Wrote 'default_config\.yaml'\. Start a script with it: fullyshard launch/);
    assert.equal(readFileSync(folder.file("default_config.yaml"), "utf8"), usual);
    assert.deepEqual((await readAccelerateConfig(folder.file("default_config.yaml"))).problems, []);
    assert.equal(command(["config", "--config-file", "b.yaml"], "\n".repeat(10), folder.path).code, 0);
    assert.equal(readFileSync(folder.file("b.yaml"), "utf8"), usual);
  });

  it("asks again where an answer cannot be, and what counts only", async () => {
    using folder = temporaryDirectory();
    const answers = [
      "bf16",
      "0",
      "2",
      "2",
      "SHARD_GRAD_OP",
      "SIZE_BASED_WRAP",
      "1000",
      "FULL_STATE_DICT",
      "no",
      "yes",
      "no",
    ];
    const { code, stdout, stderr } = command(
      ["config", "--config-file", "a.yaml"],
      `${answers.join("\n")}\n`,
      folder.path,
    );
    assert.equal(code, 0, stderr);
    assert.equal(stderr, "Expected a number from 1, got 0\n");
    assert.match(stdout, /Ranks \(a number from 1\) \[1\]: Ranks \(a number from 1\) \[1\]: FSDP version/);
    assert.doesNotMatch(stdout, /Classes of the layers/);
    const { values, ranks, problems } = await readAccelerateConfig(folder.file("a.yaml"));
    assert.deepEqual([problems, ranks], [[], { count: 2 }]);
    assert.deepEqual(values, {
      strategy: "fsdp",
      precision: "bfloat16",
      reshardAfterForward: false,
      stateDictType: "full",
      activationCheckpointing: "full",
      cpuOffload: false,
      fsdpPlan: { mode: "size", minNumParams: 1000 },
    });
  });

  longTest("refuses answers that end, and a file that is there", () => {
    using folder = temporaryDirectory();
    const ended = command(["config"], "no\n", folder.path);
    assert.equal(ended.code, 2);
    assert.match(ended.stderr, /answers: expected an answer to 'Ranks', got the end of the input/);
    folder.write("default_config.yaml", "");
    const there = command(["config", "--defaults"], "", folder.path);
    assert.equal(there.code, 2);
    assert.match(there.stderr, /--config-file: expected a new file, got 'default_config\.yaml', which is there/);
    assert.equal(command(["config", "--defaults", "--overwrite"], "", folder.path).code, 0);
    assert.match(command(["config", "--default"], "", folder.path).stderr, /Did you mean '--defaults'\?/);
  });
});

describe("fullyshard launch", () => {
  it("starts as many ranks as the file says, and the script reads it too", { timeout: 120_000 }, () => {
    using folder = temporaryDirectory();
    folder.write(
      "a.yaml",
      "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\nfsdp_config:\n  fsdp_use_orig_params: true\n",
    );
    const flags = flagsIn(folder, "--steps", "2");
    const { code, stderr } = command(["launch", "--config", "a.yaml", tiny, ...flags], "", folder.path);
    assert.equal(code, 0, stderr);
    assert.match(stderr, /fsdp_use_orig_params: parameters are always the model's own/);
    assert.match(stderr, /FSDP over 2 ranks \(shm\), 135760 parameters, bfloat16/);
    assert.equal(losses(folder).size, 2);
    const more = ["--num_processes", "1", tiny, ...flags, "--overwrite", "--precision", "float32"];
    const other = command(["launch", "--config_file", "a.yaml", ...more], "", folder.path);
    assert.equal(other.code, 0, other.stderr);
    assert.match(other.stderr, /FSDP over 1 rank .*float32/);
  });

  it("refuses what is wrong in the file before any rank starts, and none", () => {
    using folder = temporaryDirectory();
    const none = command(["launch", tiny], "", folder.path);
    assert.equal(none.code, 2);
    assert.match(
      none.stderr,
      /--config: expected a file of Accelerate, got nothing.*Write one with 'fullyshard config'/,
    );
    folder.write("default_config.yaml", "distributed_type: FSDP\nnum_machines: 2\n");
    const wrong = command(["launch", tiny], "", folder.path);
    assert.equal(wrong.code, 2);
    assert.match(
      wrong.stderr,
      /default_config\.yaml:2:\d+: num_machines: expected 1, got 2: start several hosts by/,
    );
    assert.match(command(["launch", "--help"], "", folder.path).stdout, /--config <file>.*\n[^]*--nproc-per-node/);
  });
});

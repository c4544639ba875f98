/** Small modules that tests of FSDP and DDP are about. @module */
import type { Device } from "../../doors/device.ts";
import { keyOf, uniformInt } from "../../doors/testing.ts";
import { Linear, Module, type Parameter } from "../../doors/nn.ts";
import { type Tensor, tensor } from "../../mod.ts";

/** A linear layer with a bend, so that gradients differ from layer to layer. */
export class Layer extends Module<[x: Tensor], Tensor> {
  readonly linear: Linear;

  constructor(device: Device, width: number) {
    super();
    this.linear = new Linear(device, width, width);
  }

  forward(x: Tensor): Tensor {
    return this.linear.call(x).tanh();
  }
}

/** Layers, run in the order of `order`, and a head of its own. */
export class Stack extends Module<[x: Tensor], Tensor> {
  readonly layers: readonly Layer[];
  readonly head: Linear;
  /** Places in `layers`, repeats allowed. */
  order: readonly number[];
  /** Places in `layers` that run once more, for nothing. */
  wasted: readonly number[] = [];

  constructor(device: Device, width: number, depth: number) {
    super();
    this.layers = Array.from({ length: depth }, () => new Layer(device, width));
    this.head = new Linear(device, width, width);
    this.order = this.layers.map((_, i) => i);
  }

  forward(x: Tensor): Tensor {
    let hidden = x;
    for (const i of this.wasted) this.layers[i]?.call(x.mul(1));
    for (const i of this.order) hidden = this.layers[i]?.call(hidden) ?? hidden;
    return this.head.call(hidden);
  }
}

/** Values in [-1, 1). */
export function values(name: string, n: number): Float32Array<ArrayBuffer> {
  const key = keyOf(11, name);
  return Float32Array.from({ length: n }, (_, i) => uniformInt(key, i, 2 ** 20) / 2 ** 19 - 1);
}

/** An input [rows, width]. */
export function input(device: Device, name: string, rows: number, width: number): Tensor {
  return tensor(device, values(name, rows * width), { shape: [rows, width] });
}

/** Gradients of what this rank owns, by FQN; undefined where there is none. */
export function gradients(parameters: Iterable<Parameter>): Map<string, number[] | undefined> {
  const map = new Map<string, number[] | undefined>();
  for (const parameter of parameters) {
    map.set(parameter.fqn, parameter.grad === undefined ? undefined : [...parameter.grad.toArray()]);
  }
  return map;
}

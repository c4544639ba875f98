/**
 * Loading of a kernel's functions: the text is compiled and loaded when the first of them is called.
 *
 * @module
 */
import type { Handle } from "../../ffi/types.ts";
import type { KernelCompiler } from "./compiler.ts";
import type { Cudart } from "./libraries.ts";

/** Parts that load kernels. */
export interface Loader {
  readonly cudart: Cudart;
  readonly compiler: KernelCompiler;
  /** Throws if a kernel must not be loaded now. */
  readonly mayLoad: (kernel: string) => void;
}

/** Makes a function that returns a kernel's functions by the names of their entry points; it is compiled as `compiledName`. */
export function functionLoader(
  { cudart, compiler, mayLoad }: Loader,
  kernel: string,
  compiledName: string,
  text: () => string,
): (point: string) => Handle<"cudaKernel_t"> {
  const { provider } = cudart;
  let library: Handle<"cudaLibrary_t"> | undefined;
  return (point) => {
    mayLoad(kernel);
    if (library === undefined) {
      const place = provider.out("cudaLibrary_t");
      const code = compiler.code(compiledName, text());
      cudart.need("cudaLibraryLoadData")(place, code, null, null, 0, null, null, 0);
      library = place.value;
    }
    const place = provider.out("cudaKernel_t");
    cudart.need("cudaLibraryGetKernel")(place, library, point);
    return place.value;
  };
}

/**
 * The errors of the library.
 *
 * @module
 */

export {
  ArgumentError,
  CheckpointError,
  CollectiveError,
  type CollectiveFacts,
  ConfigError,
  type ConfigProblem,
  DivergenceError,
  DTypeError,
  FileError,
  GraphCaptureError,
  HazardError,
  InternalError,
  LibraryNotFoundError,
  NativeError,
  NonFiniteError,
  OutOfMemoryError,
  RendezvousError,
  ShapeError,
  UnsupportedError,
  UseAfterDisposeError,
} from "../src/errors.ts";

/**
 * One rank of a training on a mesh: a Worker.
 *
 * @module
 */
import { hasAxes, serveTraining } from "../axes/serve.ts";
import { type MeshOrders, trainOnMesh } from "./training.ts";

serveTraining((data): data is MeshOrders => hasAxes(data), trainOnMesh);

/**
 * One rank of a training over axes: a Worker.
 *
 * @module
 */
import { hasAxes, serveTraining } from "./serve.ts";
import { type FamilyOrders, trainFamily } from "./training.ts";

serveTraining((data): data is FamilyOrders => hasAxes(data), trainFamily);

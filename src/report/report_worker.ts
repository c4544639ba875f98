/**
 * The Worker that writes a run's report while the run goes on.
 *
 * @module
 */
import * as z from "zod";
import { givenData } from "../runtime/background_worker.ts";
import { writeReport } from "./write_report.ts";

const job = z.object({ folder: z.string(), file: z.string() }).parse(givenData());
await writeReport([job.folder], job.file);

/**
 * Names in the folder by which a launcher and the ranks of a host go on after a failure.
 *
 * @module
 */

/** The file by which the launcher asks ranks to leave at a step's border. */
export const REGROUP_MARK = "regroup";

/** The folder that has the state of the ranks, as checkpoints. */
export const KEPT_FOLDER = "kept";

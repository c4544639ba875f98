/**
 * Names in the folder by which a launcher and the ranks of a host go on after a failure.
 *
 * @module
 */

/** The file by which the launcher asks ranks to leave at a step's border. */
export const REGROUP_MARK = "regroup";

/** The file in which the launcher says which step's state the next host has too. */
export const COPIED_FILE = "copied";

/** The folder of other hosts' state, each in a folder of its launcher's id. */
export const COPIES_FOLDER = "copies";

/** The folder that has the state of the ranks, as checkpoints. */
export const KEPT_FOLDER = "kept";

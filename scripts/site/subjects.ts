/**
 * The pages of the site by subject: a document that is in no subject has no page, and the build says so.
 *
 * @module
 */

/** A page that is made of a document. */
export interface SitePage {
  /** The document, from the root of the project. */
  readonly source: string;
  /** The page, from the root of the site. */
  readonly path: string;
  /** Its name in the navigation. */
  readonly label: string;
}

/** Pages that are about one thing. */
export interface Subject {
  readonly title: string;
  readonly pages: readonly SitePage[];
}

function subject(title: string, labels: Readonly<Record<string, string>>): Subject {
  const pages = Object.entries(labels).map(([name, label]) => ({
    source: `docs/${name}.md`,
    path: `${name.replaceAll("_", "-")}.html`,
    label,
  }));
  return { title, pages };
}

/** Subjects and their pages, in the order in which a newcomer meets them. */
export const SUBJECTS: readonly Subject[] = [
  {
    title: "Start",
    pages: [
      { source: "README.md", path: "index.html", label: "Overview" },
      ...subject("", { install: "Install" }).pages,
    ],
  },
  subject("Tutorials", {
    tutorial_first_model: "Your first model",
    tutorial_fine_tune: "Fine-tune a model",
    tutorial_resume: "Go on, on other ranks",
    tutorial_trace: "Read a trace",
    from_pytorch: "Port a PyTorch script",
    tutorial_new_family: "A model family of your own",
  }),
  subject("Train", {
    recipes: "Recipes",
    modules: "Modules of your own",
    data: "Data",
    models: "Models",
    tokenizers: "Tokenizers",
    chats: "Chats",
    preference: "Preferences",
    distillation: "Distillation",
    lora: "LoRA",
    evaluation: "Evaluation",
    export: "Export",
  }),
  subject("FSDP", {
    how_fsdp_works: "How FSDP works",
    demo: "FSDP in a page",
    fsdp: "Names and order of calls",
    parallelism: "Parallelism",
    fsdp_config: "Accelerate’s settings",
    tensor: "Tensors",
    checkpoints: "Checkpoints",
  }),
  subject("Run", {
    settings: "Which settings",
    report: "Look at a run",
    trace: "Traces",
    failures: "Failures",
    elastic: "Elastic runs",
    clusters: "Clusters",
    cuda: "CUDA",
    "cuda-kernels": "CUDA kernels",
    performance: "Performance",
  }),
  subject("Reference", { api: "API", glossary: "Glossary", limits: "Limits" }),
  {
    title: "Project",
    pages: [
      { source: "CHANGELOG.md", path: "changes.html", label: "Changelog" },
      { source: "CONTRIBUTING.md", path: "contributing.html", label: "Contributing" },
      ...subject("", { architecture: "Architecture", adding: "Adding a part" }).pages,
    ],
  },
];

/** All pages of documents, in the order of the navigation. */
export const PAGES: readonly SitePage[] = SUBJECTS.flatMap(({ pages }) => pages);

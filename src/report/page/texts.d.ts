/**
 * Files that are imported as texts.
 *
 * @module
 */

declare module "uplot/dist/uPlot.iife.min.js" {
  const text: string;
  export { text as default };
}

declare module "uplot/dist/uPlot.min.css" {
  const text: string;
  export { text as default };
}

declare module "uplot/LICENSE" {
  const text: string;
  export { text as default };
}

declare module "*/page.css" {
  const text: string;
  export { text as default };
}

declare module "*/page.js" {
  const text: string;
  export { text as default };
}

declare module "*/live.js" {
  const text: string;
  export { text as default };
}

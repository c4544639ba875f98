/**
 * Dates as Python's `strftime` writes them in the C locale, for templates that say which day it is.
 *
 * @module
 */
import { TemplateFailure } from "./failure.ts";

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  ...["January", "February", "March", "April", "May", "June"],
  ...["July", "August", "September", "October", "November", "December"],
];

const padded = (value: number, length: number = 2): string => String(value).padStart(length, "0");

function dayOfYear(date: Date): number {
  const midnight = (day: Date): number => Date.UTC(day.getFullYear(), day.getMonth(), day.getDate());
  return (midnight(date) - Date.UTC(date.getFullYear(), 0, 0)) / 86_400_000;
}

const hour12 = (date: Date): number => date.getHours() % 12 === 0 ? 12 : date.getHours() % 12;

const CODES: Readonly<Record<string, (date: Date) => string>> = {
  "%": () => "%",
  A: (date) => `${DAYS[date.getDay()]}`,
  a: (date) => `${DAYS[date.getDay()]}`.slice(0, 3),
  B: (date) => `${MONTHS[date.getMonth()]}`,
  b: (date) => `${MONTHS[date.getMonth()]}`.slice(0, 3),
  d: (date) => padded(date.getDate()),
  e: (date) => String(date.getDate()).padStart(2, " "),
  F: (date) => strftime(date, "%Y-%m-%d"),
  H: (date) => padded(date.getHours()),
  I: (date) => padded(hour12(date)),
  j: (date) => padded(dayOfYear(date), 3),
  M: (date) => padded(date.getMinutes()),
  m: (date) => padded(date.getMonth() + 1),
  p: (date) => date.getHours() < 12 ? "AM" : "PM",
  S: (date) => padded(date.getSeconds()),
  T: (date) => strftime(date, "%H:%M:%S"),
  Y: (date) => String(date.getFullYear()),
  y: (date) => padded(date.getFullYear() % 100),
};

/** A date in a format of Python's. A `-` before a letter leaves out zeros in front. @throws {TemplateFailure} for other letters */
export function strftime(date: Date, format: string): string {
  return format.replace(/%(-?)(.)/gs, (all: string, bare: string, letter: string) => {
    const write = Object.hasOwn(CODES, letter) ? CODES[letter] : undefined;
    if (write === undefined) throw new TemplateFailure(`it fails: strftime_now() does not know ${JSON.stringify(all)}`);
    const text = write(date);
    return bare === "" ? text : text.replace(/^[0 ]+(?=.)/, "");
  });
}

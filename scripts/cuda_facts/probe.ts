/**
 * Writes the C++ program that, compiled against one release's headers, prints what they say of the names that we bind.
 * It takes nothing from our tables but the names: types, sizes, offsets and values are the compiler's. C++, because its
 * templates take a function's type apart, where C can only be asked whether it is a certain one.
 *
 * @module
 */
import { isHandleType } from "../../src/ffi/arguments.ts";
import type { ArgumentType, StructLayout } from "../../src/ffi/types.ts";
import type { Audited } from "./tables.ts";

/** The names that a table uses, which a probe asks for. */
export interface ProbedNames {
  readonly functions: readonly string[];
  readonly constants: readonly string[];
  readonly handles: readonly string[];
  readonly structs: readonly StructLayout[];
}

/** The names that a library's tables use. */
export function namesOf({ spec, constants, structs }: Audited): ProbedNames {
  const entries = Object.entries(spec.bindings);
  const types: ArgumentType[] = entries.flatMap(([, { args }]) => args);
  for (const { fields } of structs) {
    for (const { type } of Object.values(fields)) if (typeof type === "string") types.push(type);
  }
  const outs = types.flatMap((type) => typeof type === "object" && "out" in type ? [type.out] : []);
  for (const out of outs) if (typeof out === "string") types.push(out);
  return {
    functions: [...new Set(entries.map(([key, { symbol = key }]) => symbol))],
    constants: [...Object.keys(constants), ...Object.values(spec.statuses?.names ?? {})],
    handles: [...new Set(types.filter(isHandleType))],
    structs,
  };
}

/**
 * The probe of a library.
 *
 * @param library whose names it asks for
 * @param isDeclared true if the release's headers have the name
 */
export function probeProgram(library: Audited, isDeclared: (name: string) => boolean): string {
  const { headers, aliases = {} } = library;
  const names = namesOf(library);
  const structs = names.structs.filter(({ name }) => isDeclared(name));
  const handles = names.handles.map((name) => [name, aliases[name] ?? name] as const)
    .filter(([, own]) => isDeclared(own));
  const types = [...handles, ...structs.map(({ name }) => [name, name] as const)];
  return [
    `#include <cstdio>\n#include <string>\n#include <type_traits>\n#include <utility>`,
    ...headers.map((header) => `#include <${header}>`),
    PRELUDE,
    ...types.map(([name, own]) =>
      `template <> struct Named<${own}> { static constexpr const char *name = "${name}"; };`
    ),
    ...handles.map(([, own]) => `static_assert(std::is_pointer_v<${own}>);`),
    ...Object.entries(aliases).filter((pair) => pair.every(isDeclared)).map(([name, own]) =>
      `static_assert(std::is_same_v<${name}, ${own}>);`
    ),
    SIGNATURE,
    "int main() {",
    ...names.functions.filter(isDeclared).map((name) => `  FUNCTION(${name}, "${name}");`),
    ...names.constants.filter(isDeclared).map((name) => `  CONSTANT(${name}, "${name}");`),
    ...structs.flatMap(({ name, fields, initializer }) => [
      `  STRUCT(${name}, "${name}");`,
      ...Object.keys(fields).map((field) => `  MEMBER(${name}, ${field}, "${name}.${field}");`),
      ...initializer === undefined
        ? []
        : Object.keys(fields).map((field) => `  INITIAL(${name}, ${field}, "${name}.${field}", ${initializer});`),
    ]),
    "}",
    "",
  ].join("\n");
}

const PRELUDE = `
template <class T> struct Named { static constexpr const char *name = nullptr; };`;

const SIGNATURE = String.raw`
// The kind of a type: a name of our tables, or what the calling convention makes of it.
template <class T> std::string kindOf() {
  using U = std::remove_cv_t<T>;
  std::string kind;
  if constexpr (Named<U>::name != nullptr) kind = Named<U>::name;
  else if constexpr (std::is_void_v<U>) kind = "void";
  else if constexpr (std::is_enum_v<U>) kind = sizeof(U) == 4 ? "enum" : "enum of another size";
  else if constexpr (std::is_same_v<U, char>) kind = "char";
  else if constexpr (std::is_integral_v<U>) kind = (std::is_signed_v<U> ? "i" : "u") + std::to_string(8 * sizeof(U));
  else if constexpr (std::is_floating_point_v<U>) kind = "f" + std::to_string(8 * sizeof(U));
  else if constexpr (std::is_pointer_v<U>) kind = kindOf<std::remove_pointer_t<U>>() + "*";
  else if constexpr (std::is_function_v<U>) kind = "function";
  else kind = "struct";
  return std::is_const_v<T> ? "const " + kind : kind;
}

template <class F> struct Signature;
template <class R, class... A> struct Signature<R (*)(A...)> {
  static std::string write() {
    std::string list;
    ((list += (list.empty() ? "" : ", ") + kindOf<A>()), ...);
    return kindOf<R>() + "(" + list + ")";
  }
};

template <class T> std::string memberKindOf() {
  if constexpr (Named<T>::name == nullptr && (std::is_class_v<T> || std::is_union_v<T> || std::is_array_v<T>)) {
    return std::to_string(sizeof(T)) + " bytes";
  } else {
    return kindOf<T>();
  }
}

template <class T> void printInitial(const char *name, T value) {
  if constexpr (std::is_pointer_v<T>) printf("initial\t%s\t%lld\n", name, (long long)(size_t)value);
  else printf("initial\t%s\t%lld\n", name, (long long)value);
}

#define TEXT_OF(name) #name
#define EXPANDED(name) TEXT_OF(name)

// A macro that stands before a function means that the exported function of this name is another one.
#define FUNCTION(name, text) \
  printf("function\t%s\t%s\n", text, \
    std::string(EXPANDED(name)) == text ? Signature<decltype(&name)>::write().c_str() : "renamed " EXPANDED(name))
#define CONSTANT(name, text) printf("constant\t%s\t%lld\n", text, (long long)(name))
#define STRUCT(type, text) printf("struct\t%s\t%zu\n", text, sizeof(type))
#define MEMBER(type, member, text) \
  []<class T>(T *place) { \
    if constexpr (requires(T &t) { t.member; }) { \
      using M = std::remove_reference_t<decltype((place->member))>; \
      printf("member\t%s\t%s@%zu\n", text, memberKindOf<M>().c_str(), (size_t)((char *)&place->member - (char *)place)); \
    } \
  }(reinterpret_cast<type *>(4096))
#define INITIAL(type, member, text, initializer) \
  []<class T>(T value) { \
    if constexpr (requires(T &t) { t.member; }) printInitial(text, value.member); \
  }(type initializer)
`;

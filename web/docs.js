// Shows /openapi.json as a page. It works for any OpenAPI document. All text is inserted as text, never as HTML.

import { byId, element as build } from "./dom.js";

/** Creates an element. In strings, parts in backticks become code. */
const element = (name, attributes = {}, ...children) =>
  build(name, attributes, children.flat().flatMap((child) => (typeof child === "string" ? prose(child) : [child])));

const prose = (text) => text.split("`").map((part, index) => (index % 2 === 0 ? part : build("code", {}, part)));

/** Describes the type of a value. `null` is left out: it means absent everywhere. */
function typeText(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  const kinds = schema.anyOf ?? schema.oneOf;
  if (kinds) return [...new Set(kinds.filter((kind) => kind.type !== "null").map(typeText))].join(" or ");
  if (schema.allOf) return schema.allOf.map(typeText).join(" with ");
  if (schema.enum) return schema.enum.filter((value) => value !== null).map((value) => JSON.stringify(value)).join(", ");
  const types = [schema.type ?? "anything"].flat().filter((type) => type !== "null");
  return types.map((type) => {
    if (type === "array") return `array of ${schema.items ? typeText(schema.items) : "anything"}`;
    return type + rangeText(schema);
  }).join(" or ");
}

/** Describes the range of a number, except bounds that are those of the number format. */
function rangeText({ minimum, exclusiveMinimum, maximum }) {
  const above = exclusiveMinimum === undefined ? undefined : `above ${exclusiveMinimum}`;
  const from = minimum === undefined || Math.abs(minimum) > 1e18 ? above : `from ${minimum}`;
  const to = maximum === undefined || maximum > 1e18 ? undefined : `${from?.startsWith("from") ? "to" : "up to"} ${maximum}`;
  return [from, to].filter(Boolean).map((part) => ` ${part}`).join("");
}

/** The table rows of an object's properties. Properties of nested objects follow, with dotted names. */
function rows(schema, prefix = "") {
  return Object.entries(schema.properties ?? {}).flatMap(([name, property]) => {
    const required = schema.required?.includes(name) ? "required" : "";
    const standing = property.default === undefined ? required : JSON.stringify(property.default);
    const row = element("tr", { "data-name": prefix + name },
      element("th", { scope: "row" }, element("code", {}, prefix + name)),
      element("td", {}, typeText(property)), element("td", {}, standing), element("td", {}, property.description ?? ""));
    return [row, ...rows(property, `${prefix}${name}.`)];
  });
}

function table(schema) {
  const heads = ["Parameter", "Type", "Default", "Description"].map((head) => element("th", { scope: "col" }, head));
  return element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Parameters" }, element("table", {},
    element("thead", {}, element("tr", {}, heads)), element("tbody", {}, rows(schema))));
}

function operation(method, path, { summary, requestBody, responses, security }, schemas) {
  const parts = [element("summary", {}, element("strong", {}, method.toUpperCase()), " ", element("code", {}, path), ` ${summary}`)];
  if (security) parts.push(element("p", {}, "Requires an API key: send the header `authorization: Bearer KEY`."));
  const body = requestBody?.content?.["application/json"]?.schema;
  if (body) parts.push(table(body));
  const answers = Object.entries(responses).map(([status, { description, content = {} }]) => {
    const kinds = Object.entries(content).map(([media, { schema }]) => `${media} (${typeText(schema)})`);
    return element("li", {}, element("strong", {}, status), ` ${description}: ${kinds.join(", ")}`);
  });
  parts.push(element("ul", {}, answers));
  const answer = responses["200"]?.content?.["application/json"]?.schema?.$ref?.split("/").pop();
  if (answer) {
    parts.push(element("details", {}, element("summary", {}, `Schema of ${answer}`),
      element("pre", { tabindex: "0" }, document.createTextNode(JSON.stringify(schemas[answer], null, 2)))));
  }
  return element("details", { class: "operation", "data-path": path, ...(body ? { open: "" } : {}) }, parts);
}

/** Shows only the rows and operations that contain the text. */
function filter(text) {
  const wanted = text.trim().toLowerCase();
  for (const each of document.querySelectorAll(".operation")) {
    const isPath = each.dataset.path.toLowerCase().includes(wanted);
    const found = [...each.querySelectorAll("tr[data-name]")].map((row) => {
      row.hidden = !isPath && !row.textContent.toLowerCase().includes(wanted);
      return !row.hidden;
    });
    each.hidden = !isPath && !found.includes(true);
  }
}

try {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(`HTTP status ${response.status}: ${await response.text()}`);
  const { info, paths, components } = await response.json();
  byId("intro").append(...prose(info.description));
  byId("operations").append(...Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, described]) => operation(method, path, described, components.schemas))));
  byId("filter").addEventListener("input", (event) => filter(event.target.value));
} catch (error) {
  byId("error").textContent = `cannot load the API description: ${error.message}`;
  byId("error").hidden = false;
}

// Shows the OpenAPI document of this server: the routes with their bodies, responses and errors, then the types.
"use strict";

/** An element with a class and children; text stays text. */
function make(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** Text, with the parts between backticks as code. */
function prose(text) {
  return (text ?? "").split("`").map((part, index) => (index % 2 === 0 ? part : make("code", "", part)));
}

/** A schema in a few words, with links to the types that it names. */
function words(schema) {
  if (schema === undefined || schema === true) return ["anything"];
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    const link = make("a", "", name);
    link.href = `#type-${name}`;
    return [link];
  }
  if (schema["x-json"]) return [...words(schema["x-json"]), " as JSON"];
  if (schema.properties?.data?.["x-json"]) return ["events, whose data is ", ...words(schema.properties.data)];
  const several = schema.oneOf ?? schema.anyOf ?? schema.allOf;
  if (several) {
    const between = schema.allOf ? " and " : " or ";
    return several.flatMap((one, index) => (index === 0 ? words(one) : [between, ...words(one)]));
  }
  if (schema.enum) return [schema.enum.map((value) => JSON.stringify(value)).join(" or ")];
  const types = [schema.type ?? "anything"].flat();
  return types.flatMap((type, index) => {
    const word = type === "array" ? ["list of ", ...words(schema.items)] : [type];
    return index === 0 ? word : [" or ", ...word];
  });
}

/** The fields of a type, those of its nameless parts included. */
function fields(schema) {
  const parts = (schema.allOf ?? []).flatMap((part) => (part.$ref ? [] : fields(part)));
  const required = new Set(schema.required ?? []);
  const own = Object.entries(schema.properties ?? {}).map(([name, field]) => ({ name, field, isRequired: required.has(name) }));
  return [...parts, ...own];
}

function fieldRow({ name, field, isRequired }) {
  return make("tr", "", make("td", isRequired ? "required" : "", name), make("td", "", ...words(field)), make("td", "", ...prose(field.description)));
}

function typeElement(name, schema) {
  const rows = fields(schema).map(fieldRow);
  const inside = make("div", "inside", make("p", "note", ...prose(schema.description)));
  if (rows.length > 0) inside.append(make("table", "", ...rows));
  if (rows.length === 0 || schema.allOf) inside.append(make("p", "", ...words(schema)));
  const box = make("details", "", make("summary", "", make("span", "path", name)), inside);
  box.id = `type-${name}`;
  return box;
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** The request as a curl command. */
function curl(method, path, body) {
  const key = element("key").value.trim() ? ` -H "Authorization: Bearer $API_KEY"` : "";
  if (method === "GET") return `curl${key} ${location.origin}${path}`;
  return `curl${key} ${location.origin}${path} -H 'Content-Type: application/json' \\\n  -d ${quoted(body)}`;
}

/** Sends a request, and shows the response in an element while it arrives. */
async function send(method, path, body, into) {
  const key = element("key").value.trim();
  const headers = { ...(body ? { "Content-Type": "application/json" } : {}), ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  into.textContent = "…";
  try {
    const response = await ask(path, { method, headers, body });
    into.textContent = `${response.status} ${response.statusText}\n`;
    if (response.body) for await (const piece of pieces(response)) into.append(piece);
  } catch (error) {
    into.append(`\n${error.message}`);
  }
}

function tryElement(method, route, example) {
  const path = make("input", "", "");
  path.value = route.replace("{id}", "demo");
  path.size = 40;
  path.setAttribute("aria-label", "Path");
  const body = make("textarea");
  body.value = example === undefined ? "" : JSON.stringify(example, null, 2);
  body.rows = Math.min(16, body.value.split("\n").length + 1);
  body.setAttribute("aria-label", "Body");
  const answer = make("pre");
  answer.hidden = true;
  const actionButton = (label, className, action) => {
    const button = make("button", className, label);
    button.type = "button";
    button.addEventListener("click", () => {
      answer.hidden = false;
      action();
    });
    return button;
  };
  const hasBody = method === "POST";
  const box = make("div", "", make("h3", "", "Try"), path);
  if (hasBody) box.append(body);
  box.append(
    actionButton("Send", "send", () => send(method, path.value, hasBody ? body.value : undefined, answer)),
    actionButton("Show as curl", "", () => { answer.textContent = curl(method, path.value, body.value); }),
    answer,
  );
  return box;
}

/** The cells for each media type of a body or a response: the type and the schema. */
function contents(content) {
  return Object.entries(content ?? {}).map(([type, { schema }]) => [make("td", "", type), make("td", "", ...words(schema))]);
}

/** The rows of a response: its status and contents, and its description if that differs from the route's summary. */
function answerRows(status, { description, content }, summary) {
  const rows = contents(content);
  if (rows.length === 0 || description !== summary) rows.push([make("td"), make("td", "note", ...prose(description))]);
  return rows.map((cells, index) => make("tr", "", make("td", "", index === 0 ? status : ""), ...cells));
}

function routeElement(path, method, operation) {
  const verb = method.toUpperCase();
  const content = operation.requestBody?.content;
  const answers = Object.entries(operation.responses).flatMap(([status, answer]) => answerRows(status, answer, operation.summary));
  const parameters = (operation.parameters ?? []).map(({ name, schema, description, required }) => fieldRow({ name, field: { ...schema, description }, isRequired: required }));
  const inside = make("div", "inside", make("p", "note", ...prose(operation.description)));
  if (parameters.length > 0) inside.append(make("h3", "", "Parameters"), make("table", "", ...parameters));
  if (content) inside.append(make("h3", "", "Request body"), make("table", "", ...contents(content).map((cells) => make("tr", "", ...cells))));
  inside.append(make("h3", "", "Responses"), make("table", "", ...answers));
  inside.append(tryElement(verb, path, content?.["application/json"]?.example));
  return make("details", "", make("summary", "", make("span", "method", verb), make("span", "path", path), make("span", "summary", ...prose(operation.summary))), inside);
}

/** A link to a type opens it. */
function openType() {
  const target = element(decodeURIComponent(location.hash.slice(1)));
  if (target?.tagName === "DETAILS") target.open = true;
}

async function show() {
  try {
    const { info, tags, paths, components } = await (await ask("/api-doc/openapi.json")).json();
    element("title").textContent = `${info.title} ${info.version}`;
    element("about").replaceChildren(...prose(info.description));
    for (const { name, description } of tags) {
      element("routes").append(make("h2", "", name), make("p", "note", ...prose(description)));
      for (const [path, item] of Object.entries(paths)) {
        for (const [method, operation] of Object.entries(item)) {
          if (operation.tags.includes(name)) element("routes").append(routeElement(path, method, operation));
        }
      }
    }
    element("types").append(make("h2", "", "Types"), ...Object.entries(components.schemas).map(([name, schema]) => typeElement(name, schema)));
    openType();
  } catch (error) {
    element("about").textContent = `The OpenAPI document cannot be read: ${error.message}`;
  }
}

addEventListener("hashchange", openType);
keep(sessionStorage, { key: element("key") });
show();

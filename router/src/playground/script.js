// The playground: sends requests to this server's OpenAI routes and shows the tokens as they arrive.
"use strict";

const CANDIDATES = 5;
// Tokens with a lower probability are underlined.
const UNLIKELY = 0.3;
// If all tokens arrive within this time, no speed is shown, because the tokens were already in the connection's buffer.
const MEASURABLE_MS = 50;
// The page scrolls with new text if the reader is within this many pixels of the end of the conversation.
const NEAR_THE_END = 48;
// Matches the server's errors when the conversation, with or without the max new tokens, exceeds the context.
const TOO_LONG = /must be <= \d+\. Given: \d+ `inputs`|must have less than \d+ tokens/;

const form = element("parameters");
// The conversation so far, as messages of OpenAI's chat API.
let conversation = [];
let running = null;

const mode = () => document.querySelector("input[name=mode]:checked").value;

/** The parameters that are not empty, as JSON values. */
function parameters() {
  const chosen = {};
  for (const input of form.querySelectorAll("input[type=number]")) {
    if (input.value !== "") chosen[input.name] = Number(input.value);
  }
  const stop = form.stop.value.split("\n").filter((line) => line !== "");
  if (stop.length > 0) chosen.stop = stop;
  const schema = typedJson("schema", "JSON schema for the response");
  if (schema !== undefined) chosen.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  const tools = mode() === "chat" ? typedJson("tools", "Tools") : undefined;
  if (tools !== undefined) Object.assign(chosen, { tools, tool_choice: form.tool_choice.value });
  return chosen;
}

/** The value of a field that contains JSON; `undefined` if the field is empty. */
function typedJson(name, label) {
  const text = form[name].value.trim();
  if (text === "") return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${label}: ${error.message}`);
  }
}

/** The messages that are not sent yet: the results of the tool calls, and the question. */
function news() {
  const results = [...document.querySelectorAll("#messages input:enabled")];
  const messages = results.map((input) => ({ role: "tool", tool_call_id: input.dataset.call, content: input.value }));
  const question = element("question").value.trim();
  return question ? [...messages, { role: "user", content: question }] : messages;
}

/** The body of a request, without the fields for streaming and probabilities. */
function body() {
  if (mode() === "completion") return { prompt: element("prompt").value, ...parameters() };
  const system = element("system").value.trim();
  return { messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation, ...news()], ...parameters() };
}

const path = () => (mode() === "chat" ? "/v1/chat/completions" : "/v1/completions");

function headers() {
  const key = form.key.value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

function showError(message, canShorten = false) {
  element("error").textContent = message;
  element("error").hidden = message === "";
  element("shorten").hidden = !canShorten;
}

/** The indices of the user's messages in the conversation. */
const turns = () => conversation.flatMap(({ role }, index) => (role === "user" ? [index] : []));

/** Removes the older half of the questions with their answers, and sends the request again. */
function shorten() {
  const starts = turns();
  const kept = starts[Math.ceil(starts.length / 2)] ?? conversation.length;
  const forgotten = conversation.slice(0, kept).filter(({ role }) => role !== "tool").length;
  conversation = conversation.slice(kept);
  [...element("messages").children].slice(0, forgotten).forEach((item) => item.remove());
  send();
}

/** Shows the newest text, unless the reader has scrolled up to read something else. */
let reads = true;
function follow(anyway = false) {
  const paper = element("paper");
  reads ||= anyway;
  if (reads) paper.scrollTop = paper.scrollHeight;
  element("newest").hidden = reads;
}

/** Records if the reader is at the end of the conversation. */
function noticeReader() {
  const { scrollHeight, scrollTop, clientHeight } = element("paper");
  reads = scrollHeight - scrollTop - clientHeight < NEAR_THE_END;
  element("newest").hidden = reads;
}

/** Returns the error that a failed response describes. */
async function refusal(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    const message = error.message ?? error;
    const isTooLong = error.code === "context_length_exceeded" || TOO_LONG.test(message);
    return Object.assign(new Error(`${response.status}: ${message}`), { isTooLong });
  } catch {
    return new Error(`${response.status}: ${text || response.statusText}`);
  }
}

/** The events of a stream, parsed, each with the time at which it was read. */
async function* events(response) {
  let rest = "";
  for await (const piece of pieces(response)) {
    const at = performance.now();
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield { at, event: JSON.parse(data) };
    }
  }
}

/** The tokens of a choice: {text, probability, others: [[text, probability]]}. */
function tokens(choice) {
  const { logprobs } = choice;
  const text = choice.delta ? choice.delta.content ?? "" : choice.text;
  if (!logprobs) return text ? [{ text }] : [];
  if (logprobs.content) {
    return logprobs.content.map((token) => ({
      text: token.token,
      probability: Math.exp(token.logprob),
      others: token.top_logprobs.map((other) => [other.token, Math.exp(other.logprob)]),
    }));
  }
  return logprobs.tokens.map((token, index) => ({
    text: token,
    probability: Math.exp(logprobs.token_logprobs[index]),
    others: Object.entries(logprobs.top_logprobs[index] ?? {}).map(([other, logprob]) => [other, Math.exp(logprob)]),
  }));
}

function tokenElement({ text, probability, others }) {
  const span = document.createElement("span");
  span.textContent = text;
  if (probability === undefined) return span;
  span.className = probability < UNLIKELY ? "token unlikely" : "token";
  span.tabIndex = -1;
  const percent = (value) => `${(100 * value).toFixed(1).padStart(5)} %`;
  const lines = others.map(([other, value]) => `${percent(value)}  ${JSON.stringify(other)}`);
  span.dataset.candidates = lines.length > 0 ? lines.join("\n") : `${percent(probability)}  ${JSON.stringify(text)}`;
  return span;
}

function div(kind) {
  const made = document.createElement("div");
  made.className = kind;
  return made;
}

/** Adds a message to the page; returns the elements for its reasoning, its text and its tool calls. */
function addMessage(role, content) {
  const item = document.createElement("li");
  item.className = role;
  const who = document.createElement("b");
  who.textContent = role;
  const parts = { item, thoughts: div("thoughts"), text: div("text"), calls: div("calls") };
  parts.text.textContent = content;
  item.append(who, parts.thoughts, parts.text, parts.calls);
  element("messages").append(item);
  return parts;
}

/** Adds streamed parts of tool calls to the earlier parts of the same calls. */
function addCalls(calls, pieces, into) {
  for (const { index, id, function: piece } of pieces) {
    calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } };
    calls[index].function.name += piece.name ?? "";
    calls[index].function.arguments += piece.arguments ?? "";
  }
  into.textContent = calls.map((call) => `${call.function.name}(${call.function.arguments})`).join("\n");
}

/** Shows a field for the result of each tool call. */
function askForResults(calls, into) {
  into.replaceChildren();
  for (const call of calls) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.dataset.call = call.id;
    input.placeholder = "result of the call, then Send";
    label.append(`${call.function.name}(${call.function.arguments})`, input);
    into.append(label);
  }
}

/** The times at which tokens arrived, and the speed that follows from them. */
class Pace {
  began = performance.now();
  count = 0;
  first = null;
  last = null;
  countOfFirst = 0;

  /** Counts tokens that were read at the time `at`. */
  add(tokens, at) {
    this.first ??= at;
    this.last = at;
    this.count += tokens;
    if (at === this.first) this.countOfFirst += tokens;
  }

  toString() {
    if (this.first === null) return "0 tokens";
    const took = this.last - this.first;
    const later = this.count - this.countOfFirst;
    const rate = took >= MEASURABLE_MS && later > 0 ? ` · ${((1000 * later) / took).toFixed(1)} tokens/s` : "";
    const ms = (value) => `${value.toFixed(0)} ms`;
    return `${this.count} tokens in ${ms(this.last - this.began)} · first after ${ms(this.first - this.began)}${rate}`;
  }
}

/** Streams a response into its elements on the page; returns the response as a message. */
async function stream(request, into, signal) {
  const pace = new Pace();
  let reason = "stopped";
  let isFull = false;
  const answer = { role: "assistant", content: "" };
  const calls = [];
  const showStats = () => {
    const limit = isFull ? " · max new tokens reduced to fit the context" : "";
    element("stats").textContent = `${pace}${limit}${reason ? ` · ${reason}` : ""}`;
  };
  try {
    const sent = await post(request, signal);
    isFull = sent.isFull;
    into.text.textContent = "";
    for await (const { at, event } of events(sent.response)) {
      if (event.error) throw new Error(event.error.message);
      for (const choice of event.choices) {
        const { delta } = choice;
        const added = delta ? delta.content ?? "" : choice.text;
        answer.content += added;
        const made = tokens(choice);
        if (made.length > 0 || delta?.reasoning_content || delta?.tool_calls) pace.add(made.length, at);
        // Only text is shown: a token may be markup, or the start of a stop sequence.
        if (added) into.text.append(tokenElement({ ...made.at(-1), text: added }));
        if (delta?.reasoning_content) into.thoughts.append(delta.reasoning_content);
        if (delta?.tool_calls) addCalls(calls, delta.tool_calls, into.calls);
        reason = choice.finish_reason ?? "";
      }
      if (event.usage) {
        pace.count = event.usage.completion_tokens;
        showModel(event.usage.total_tokens);
      }
      showStats();
      follow();
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    reason = "stopped";
  }
  showStats();
  if (calls.length > 0) {
    answer.tool_calls = calls;
    askForResults(calls, into.calls);
  }
  return answer;
}

/** Sends a request. If the context has no room for the max new tokens, sends the request again without that limit. */
async function post(request, signal) {
  const attempt = (body) => ask(path(), { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  let response = await attempt(request);
  if (response.ok) return { response, isFull: false };
  const error = await refusal(response);
  if (!error.isTooLong || request.max_tokens === undefined) throw error;
  const { max_tokens, ...rest } = request;
  response = await attempt(rest);
  if (response.ok) return { response, isFull: true };
  throw await refusal(response);
}

async function send() {
  if (running) return;
  showError("");
  element("stats").textContent = "";
  const isChat = mode() === "chat";
  const sent = isChat ? news() : [];
  const question = element("question").value;
  const answered = [...document.querySelectorAll("#messages input:enabled")];
  const shown = [];
  // "Clear" replaces `conversation` even while a response arrives.
  const talk = conversation;
  running = new AbortController();
  element("send").disabled = true;
  element("stop").disabled = false;
  try {
    const request = { ...body(), stream: true, stream_options: { include_usage: true } };
    if (form.probabilities.checked) {
      Object.assign(request, isChat ? { logprobs: true, top_logprobs: CANDIDATES } : { logprobs: CANDIDATES });
    }
    if (isChat) {
      for (const { role, content } of sent) if (role === "user") shown.push(addMessage(role, content));
      shown.push(addMessage("assistant", "…"));
      element("question").value = "";
    }
    follow(true);
    for (const input of answered) input.disabled = true;
    const answer = await stream(request, isChat ? shown.at(-1) : { text: element("continuation") }, running.signal);
    if (isChat) talk.push(...sent, answer);
  } catch (error) {
    showError(error.message, error.isTooLong && isChat && turns().length > 1);
    for (const { item } of shown) item.remove();
    for (const input of answered) input.disabled = false;
    element("question").value = question;
  } finally {
    running = null;
    element("send").disabled = false;
    element("stop").disabled = true;
  }
}

function clear() {
  running?.abort();
  conversation = [];
  element("messages").replaceChildren();
  element("continuation").replaceChildren();
  element("stats").textContent = "";
  showError("");
  showModel();
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function asCurl() {
  const key = form.key.value.trim() ? ` -H 'Authorization: Bearer '"$API_KEY"` : "";
  return `curl ${location.origin}${path()} -H 'Content-Type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(body()))}\n`;
}

/** Returns a value as a Python literal. */
function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item)}`).join(", ")}}`;
}

function asPython() {
  const isChat = mode() === "chat";
  const known = new Set(["temperature", "top_p", "max_tokens", "seed", "frequency_penalty", "presence_penalty", "stop"]);
  for (const name of isChat ? ["messages", "response_format", "tools", "tool_choice"] : ["prompt"]) known.add(name);
  const entries = Object.entries(body());
  const line = ([name, value]) => `    ${name}=${python(value)},\n`;
  const others = Object.fromEntries(entries.filter(([name]) => !known.has(name)));
  const extra = Object.keys(others).length > 0 ? `    extra_body=${python(others)},\n` : "";
  const call = isChat ? "chat.completions" : "completions";
  const text = isChat ? (entries.some(([name]) => name === "tools") ? "message" : "message.content") : "text";
  const key = form.key.value.trim() ? 'os.environ["API_KEY"]' : '"-"';
  const imports = form.key.value.trim() ? "import os\n\n" : "";
  const named = entries.filter(([name]) => known.has(name)).map(line).join("");
  return `${imports}from openai import OpenAI\n\nclient = OpenAI(base_url="${location.origin}/v1", api_key=${key})\n` +
    `answer = client.${call}.create(\n    model=${JSON.stringify(element("model").dataset.id ?? "demo")},\n${named}${extra})\nprint(answer.choices[0].${text})\n`;
}

async function copy(write, button) {
  showError("");
  let text;
  try {
    text = write();
  } catch (error) {
    showError(error.message);
    return;
  }
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Over plain HTTP a browser has no clipboard API, but it can copy a selection.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1200);
}

/** Loads the model's name and the length of its context. */
async function findModel() {
  const line = element("model");
  try {
    const response = await ask("/v1/models", { headers: headers() });
    if (!response.ok) throw await refusal(response);
    const [model] = (await response.json()).data;
    Object.assign(line.dataset, { id: model.id, room: model.max_model_len });
    showModel();
  } catch (error) {
    line.textContent = error.message;
  }
}

/** Shows the model, and how many tokens of its context the conversation uses. */
function showModel(taken = 0) {
  const line = element("model");
  const { id, room } = line.dataset;
  if (id) line.textContent = taken > 0 ? `${id} · ${taken} of ${room} tokens used` : `${id} · context of ${room} tokens`;
}

function showMode() {
  element("chat").hidden = mode() !== "chat";
  element("ask").hidden = mode() !== "chat";
  element("completion").hidden = mode() === "chat";
  element("tools").hidden = mode() !== "chat";
  showError("");
}

function showCandidates(event) {
  const box = element("candidates");
  const token = event.target.closest?.(".token");
  box.hidden = !token;
  if (!token) return;
  box.textContent = token.dataset.candidates;
  const place = token.getBoundingClientRect();
  const left = Math.min(place.left, document.documentElement.clientWidth - box.offsetWidth - 8);
  box.style.left = `${Math.max(8, left) + scrollX}px`;
  box.style.top = `${place.bottom + 4 + scrollY}px`;
}

document.addEventListener("mouseover", showCandidates);
document.addEventListener("focusin", showCandidates);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  const isField = event.target === element("question") || event.target === element("prompt") || "call" in event.target.dataset;
  const sends = event.key === "Enter" && isField && (event.ctrlKey || event.metaKey || (mode() === "chat" && !event.shiftKey));
  if (sends && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
element("send").addEventListener("click", send);
element("stop").addEventListener("click", () => running?.abort());
element("clear").addEventListener("click", clear);
element("curl").addEventListener("click", (event) => copy(asCurl, event.target));
element("python").addEventListener("click", (event) => copy(asPython, event.target));
form.addEventListener("submit", (event) => event.preventDefault());
form.key.addEventListener("change", findModel);
element("modes").addEventListener("change", showMode);
element("paper").addEventListener("scroll", noticeReader);
element("newest").addEventListener("click", () => follow(true));
element("shorten").addEventListener("click", shorten);
const fields = [...form.elements, ...document.querySelectorAll("#system, #prompt")].filter((field) => field.name !== "key");
keep(localStorage, Object.fromEntries(fields.map((field) => [field.name || field.id, field])));
// The API key is stored only until the tab is closed.
keep(sessionStorage, { key: form.key });
// In a narrow window the parameters are closed at first, so that the text is in view.
if (matchMedia("(max-width: 48rem)").matches) element("settings").open = false;
showMode();
findModel();

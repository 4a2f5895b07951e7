// The chat: histories, messages, settings.
import {useEffect, useRef, useState} from "preact/hooks";
import {Answer, hasChat, run} from "./answer";
import {AnswerText, AnswerTokens, FigureLine, Legend, Passes, Problem, useAnswer} from "./answer_view";
import type {Model, ToolCall} from "./api";
import {bodyOf} from "./request";
import {visible} from "./safe";
import {Choice, MethodForm, modelOptions, SamplingForm} from "./settings";
import {
  exported, imported, loadHistories, loadSettings, loadText, newHistory, noSettings, saveHistories, saveSettings, saveText,
  type History, type Message, type Settings,
} from "./store";
import {T} from "./text";

// Tokens and passes of answers since the page was loaded. Storage would not hold them.
const answers = new WeakMap<Message, Answer>();

interface Running {
  history: string;
  message: Message;
  controller: AbortController;
}

function chatMessages(history: History, messages: Message[]): unknown[] {
  const out: unknown[] = history.system.trim() ? [{role: "system", content: history.system}] : [];
  for (const one of messages) {
    if (one.role === "tool") out.push({role: "tool", tool_call_id: one.callId, content: one.content});
    else if (one.calls?.length) {
      out.push({
        role: "assistant",
        content: one.content || null,
        tool_calls: one.calls.map((call) => ({id: call.id, type: "function", function: {name: call.name, arguments: call.arguments}})),
      });
    } else out.push({role: one.role, content: one.content});
  }
  return out;
}

function Calls({calls}: {calls: ToolCall[]}) {
  return (
    <section aria-label={T.chat.calls}>
      {calls.map((call, i) => (
        <pre key={i} class="call"><code>{`${visible(call.name)}(${visible(call.arguments)})`}</code></pre>
      ))}
    </section>
  );
}

function AssistantMessage({message, tokens}: {message: Message; tokens: boolean}) {
  const answer = answers.get(message);
  useAnswer(answer);
  const live = answer?.state === "running";
  const text = answer ? answer.text : message.content;
  const reasoning = answer ? answer.reasoning : message.reasoning;
  const calls = answer ? answer.calls.filter(Boolean) : message.calls;
  const byToken = tokens && answer !== undefined && (answer.tokens.length > 0 || text === "");
  const figures = answer ? answer.figures() : message.figures;
  return (
    <>
      {byToken ? (
        <AnswerTokens answer={answer} />
      ) : (
        <>
          {reasoning && (
            <details class="reasoning" open={live && !text}>
              <summary>{T.chat.reasoning}</summary>
              <div class="plain">{visible(reasoning)}</div>
            </details>
          )}
          <AnswerText text={text} />
        </>
      )}
      {calls && calls.length > 0 && <Calls calls={calls} />}
      {live && answer.tokens.length === 0 && !text && <p class="note">{T.chat.waiting}</p>}
      {answer?.error && <Problem text={answer.error} />}
      {byToken && <Legend answer={answer} />}
      {figures && figures.tokens > 0 && <FigureLine figures={figures} />}
      {answer && !live && <Passes answer={answer} />}
    </>
  );
}

export function Chat({models}: {models: Model[]}) {
  const [histories, setHistories] = useState(() => {
    const stored = loadHistories();
    return stored.length > 0 ? stored : [newHistory()];
  });
  const [current, setCurrent] = useState(histories[0]!.id);
  const [settings, setSettings] = useState(() => loadSettings("chat"));
  const [draft, setDraft] = useState("");
  const [results, setResults] = useState<string[]>([]);
  const [editing, setEditing] = useState(-1);
  const [running, setRunning] = useState<Running | null>(null);
  const [problem, setProblem] = useState("");
  const [view, setView] = useState(() => loadText("view", "tokens"));
  const input = useRef<HTMLTextAreaElement>(null);
  const file = useRef<HTMLInputElement>(null);

  const history = histories.find((one) => one.id === current) ?? histories[0]!;
  const model = models.find((one) => one.id === settings.model) ?? models[0];
  const last = history.messages.at(-1);
  const asked = !running && last?.role === "assistant" ? (last.calls ?? []) : [];

  useEffect(() => saveHistories(histories), [histories]);
  useEffect(() => saveSettings("chat", settings), [settings]);
  useEffect(() => saveText("view", view), [view]);
  // A page that is closed keeps what has come so far.
  useEffect(() => {
    if (!running) return;
    const keep = () => {
      running.message.content = answers.get(running.message)!.text;
      saveHistories(histories);
    };
    window.addEventListener("pagehide", keep);
    return () => window.removeEventListener("pagehide", keep);
  }, [running, histories]);
  useEffect(() => setResults([]), [last]);

  // Follows the end of the answer, unless the user has scrolled away from it.
  useEffect(() => {
    const answer = running && answers.get(running.message);
    if (!answer) return;
    let at = window.scrollY;
    let follow = true;
    const scrolled = () => {
      if (window.scrollY < at) follow = false;
      if (window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 40) follow = true;
      at = window.scrollY;
    };
    window.addEventListener("scroll", scrolled, {passive: true});
    const toEnd = () => follow && window.scrollTo(0, document.documentElement.scrollHeight);
    const stop = answer.subscribe(() => requestAnimationFrame(toEnd));
    return () => {
      stop();
      window.removeEventListener("scroll", scrolled);
      requestAnimationFrame(toEnd); // with its figures
    };
  }, [running]);

  const update = (id: string, change: (history: History) => History) =>
    setHistories((all) => {
      const changed = all.map((one) => (one.id === id ? {...change(one), changed: Date.now()} : one));
      return changed.sort((a, b) => b.changed - a.changed);
    });

  const ask = async (before: Message[]) => {
    if (!model) return;
    let body: Record<string, unknown>;
    const chat = hasChat(model);
    try {
      body = bodyOf(settings, model, chat);
    } catch (error) {
      return setProblem((error as Error).message);
    }
    setProblem("");
    if (chat) body.messages = chatMessages(history, before);
    else body.prompt = [history.system.trim(), ...before.map((one) => one.content)].filter(Boolean).join("\n");
    const answer = new Answer();
    const message: Message = {role: "assistant", content: ""};
    answers.set(message, answer);
    const controller = new AbortController();
    const id = history.id;
    update(id, (one) => ({...one, title: (before[0]?.content ?? "").slice(0, 60), messages: [...before, message]}));
    setRunning({history: id, message, controller});
    await run(answer, chat ? "v1/chat/completions" : "v1/completions", body, controller.signal);
    message.content = answer.text;
    if (answer.reasoning) message.reasoning = answer.reasoning;
    if (answer.calls.length > 0) message.calls = answer.calls;
    message.figures = answer.figures();
    setRunning((now) => (now?.message === message ? null : now));
    // Nothing came: the question can be sent again.
    const empty = answer.state === "failed" && answer.tokens.length === 0 && answer.text === "";
    if (empty) {
      setProblem(answer.error ?? "");
      setDraft((text) => text || (before.at(-1)?.role === "user" ? before.at(-1)!.content : ""));
    }
    update(id, (one) => ({...one, messages: empty ? before.slice(0, -1) : [...one.messages]}));
  };

  const send = () => {
    if (running || !model) return;
    if (asked.length > 0 && editing < 0) {
      const given: Message[] = asked.map((call, i) => ({role: "tool", content: results[i] ?? "", callId: call.id}));
      return void ask([...history.messages, ...given]);
    }
    const content = input.current?.value ?? draft; // the state follows a moment later
    if (content.trim() === "") return;
    const before = editing >= 0 ? history.messages.slice(0, editing) : history.messages;
    setDraft("");
    setEditing(-1);
    void ask([...before, {role: "user", content}]);
  };
  const stop = () => {
    running?.controller.abort();
    input.current?.focus();
  };
  const edit = (i: number) => {
    setEditing(i);
    setDraft(history.messages[i]!.content);
    input.current?.focus();
  };
  const regenerate = () => void ask(history.messages.slice(0, -1));
  const begin = () => {
    const made = histories.find((one) => one.messages.length === 0) ?? newHistory();
    setHistories([made, ...histories.filter((one) => one !== made)]);
    setCurrent(made.id);
    setEditing(-1);
    setProblem("");
    input.current?.focus();
  };
  const remove = (id: string) => {
    if (running?.history === id) running.controller.abort();
    const rest = histories.filter((one) => one.id !== id);
    const kept = rest.length > 0 ? rest : [newHistory()];
    setHistories(kept);
    if (id === current) setCurrent(kept[0]!.id);
  };
  const removeAll = () => {
    if (!confirm(T.chat.deleteSure)) return;
    running?.controller.abort();
    const made = newHistory();
    setHistories([made]);
    setCurrent(made.id);
  };
  const save = () => {
    const url = URL.createObjectURL(new Blob([exported(histories)], {type: "application/json"}));
    const link = document.createElement("a");
    link.href = url;
    link.download = "tandem-histories.json";
    link.click();
    URL.revokeObjectURL(url);
  };
  const load = async () => {
    const chosen = file.current?.files?.[0];
    if (!chosen) return;
    try {
      const added = imported(await chosen.text());
      const known = new Set(added.map((one) => one.id));
      setHistories([...added, ...histories.filter((one) => !known.has(one.id))]);
      if (added[0]) setCurrent(added[0].id);
    } catch (error) {
      setProblem(T.errors.file((error as Error).message));
    }
    file.current!.value = "";
  };

  return (
    <div class="chat">
      <details class="panel histories" open={innerWidth > 1100}>
        <summary>{T.chat.histories}</summary>
        <button type="button" onClick={begin}>{T.chat.new}</button>
        <ul>
          {histories.map((one) => (
            <li key={one.id} class={one.id === history.id ? "row current" : "row"}>
              <button type="button" class="link" aria-current={one.id === history.id ? "true" : undefined} onClick={() => setCurrent(one.id)}>
                {visible(one.title) || T.chat.untitled}
              </button>
              <button type="button" class="small" aria-label={`${T.chat.delete}: ${one.title || T.chat.untitled}`} onClick={() => remove(one.id)}>×</button>
            </li>
          ))}
        </ul>
        <div class="row">
          <button type="button" class="small" onClick={save}>{T.chat.export}</button>
          <button type="button" class="small" onClick={() => file.current?.click()}>{T.chat.import}</button>
          <input ref={file} type="file" accept="application/json" hidden aria-label={T.chat.import} onChange={() => void load()} />
          <button type="button" class="small" onClick={removeAll}>{T.chat.deleteAll}</button>
        </div>
      </details>

      <section class="talk" aria-label={T.views.chat}>
        <div class="row">
          <span id="view-label">{T.chat.view}</span>
          <div class="segments" role="radiogroup" aria-labelledby="view-label">
            {(["tokens", "text"] as const).map((one) => (
              <label key={one}>
                <input type="radio" name="view" value={one} checked={view === one} onChange={() => setView(one)} /> {T.chat[one]}
              </label>
            ))}
          </div>
        </div>
        <div class="messages">
          {history.messages.length === 0 && <p class="note">{T.chat.empty}</p>}
          {history.messages.map((one, i) => (
            <article key={i} class={`message ${one.role}`}>
              <header class="row">
                <h3>{one.role === "user" ? T.chat.user : one.role === "tool" ? T.chat.tool : T.chat.assistant}</h3>
                <span class="spring" />
                {one.role === "user" && !running && (
                  <button type="button" class="small" onClick={() => edit(i)}>{T.chat.edit}</button>
                )}
                {one.role === "assistant" && one !== running?.message && (
                  <button type="button" class="small" onClick={() => void navigator.clipboard?.writeText(one.content)}>{T.chat.copy}</button>
                )}
                {one.role === "assistant" && one === last && !running && (
                  <button type="button" class="small" onClick={regenerate}>{T.chat.regenerate}</button>
                )}
              </header>
              {one.role === "assistant" ? <AssistantMessage message={one} tokens={view === "tokens"} /> : <div class="plain">{visible(one.content)}</div>}
            </article>
          ))}
        </div>
        {problem && <Problem text={problem} />}
        {model && !hasChat(model) && <p class="note">{T.chat.noTemplate}</p>}
        <form
          class="composer"
          onSubmit={(event) => {
            event.preventDefault();
            send();
          }}
        >
          {asked.length > 0 && editing < 0 ? (
            asked.map((call, i) => (
              <div class="field" key={call.id}>
                <label for={`result-${i}`}>{T.chat.resultOf(visible(call.name))}</label>
                <textarea id={`result-${i}`} rows={2} value={results[i] ?? ""}
                  onInput={(event) => setResults(asked.map((_, j) => (j === i ? event.currentTarget.value : (results[j] ?? ""))))} />
              </div>
            ))
          ) : (
            <div class="field">
              <label for="message">{editing >= 0 ? T.chat.editing : T.chat.message}</label>
              <textarea
                id="message"
                ref={input}
                rows={2}
                value={draft}
                placeholder={T.chat.placeholder}
                onInput={(event) => setDraft(event.currentTarget.value)}
                onKeyDown={(event) => {
                  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
                  event.preventDefault();
                  send();
                }}
              />
            </div>
          )}
          <div class="row">
            {running ? (
              <button key="stop" type="button" class="primary" onClick={stop}>{T.chat.stop}</button>
            ) : (
              <button key="send" type="submit" class="primary" disabled={!model}>{T.chat.send}</button>
            )}
            {editing >= 0 && (
              <button type="button" onClick={() => { setEditing(-1); setDraft(""); }}>{T.chat.cancel}</button>
            )}
          </div>
        </form>
      </section>

      <details class="panel settings" open={innerWidth > 800}>
        <summary>{T.chat.settings}</summary>
        <Choice label={T.settings.model} value={model?.id ?? ""} options={modelOptions(models)} onChange={(id) => setSettings({...settings, model: id})} />
        <MethodForm model={model} method={settings.method} values={settings.methods}
          onMethod={(method) => setSettings({...settings, method})} onValues={(methods) => setSettings({...settings, methods})} />
        <div class="field">
          <label for="system">{T.chat.system}</label>
          <textarea id="system" rows={3} value={history.system}
            onInput={(event) => { const system = event.currentTarget.value; update(history.id, (one) => ({...one, system})); }} />
        </div>
        <SamplingForm model={model} value={settings} full onChange={(next: Settings) => setSettings(next)} />
        <button type="button" class="small" onClick={() => setSettings({...noSettings(), model: settings.model})}>{T.settings.reset}</button>
      </details>
    </div>
  );
}

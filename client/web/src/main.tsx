// The page: navigation, theme, the user's token, and the views.
import {render} from "preact";
import {useEffect, useLayoutEffect, useRef, useState} from "preact/hooks";
import {messageOf} from "./answer";
import {Problem} from "./answer_view";
import {ApiError, listModels, token, type Model} from "./api";
import {Chat} from "./chat";
import {Compare} from "./compare";
import {Score} from "./score";
import {ServerView} from "./server";
import {whenFull} from "./store";
import "./style.css";
import {T} from "./text";
import {setTheme, theme, useTheme, type Theme} from "./theme";

const VIEWS = ["chat", "compare", "score", "server"] as const;
type View = (typeof VIEWS)[number];
const viewOfUrl = (): View => VIEWS.find((view) => location.hash === `#${view}`) ?? "chat";

function TokenDialog({open, wrong, onClose}: {open: boolean; wrong: boolean; onClose: (changed: boolean) => void}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const input = useRef<HTMLInputElement>(null);
  // The event of an earlier close() may come after the dialog was opened again.
  useLayoutEffect(() => {
    if (open && !dialog.current!.open) dialog.current!.showModal();
    if (!open && dialog.current!.open) dialog.current!.close();
  }, [open]);
  return (
    <dialog ref={dialog} aria-labelledby="token-title" onClose={() => dialog.current!.open || onClose(false)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          token.set(input.current!.value.trim());
          input.current!.value = "";
          onClose(true);
        }}
      >
        <h2 id="token-title">{T.token.title}</h2>
        <p class="note">{T.token.help}</p>
        {wrong && <Problem text={T.token.wrong} />}
        <div class="field">
          <label for="token">{T.token.label}</label>
          <input id="token" ref={input} type="password" autocomplete="off" />
        </div>
        <div class="row">
          <button type="submit" class="primary">{T.token.use}</button>
          <button type="button" onClick={() => { token.set(""); onClose(true); }}>{T.token.forget}</button>
          <button type="button" onClick={() => onClose(false)}>{T.token.close}</button>
        </div>
      </form>
    </dialog>
  );
}

function App() {
  const [view, setView] = useState(viewOfUrl);
  const [visited, setVisited] = useState<ReadonlySet<View>>(new Set([viewOfUrl()]));
  const [models, setModels] = useState<Model[]>([]);
  const [problem, setProblem] = useState("");
  const [full, setFull] = useState(false);
  const [session, setSession] = useState(0);
  const [asking, setAsking] = useState<"" | "wanted" | "needed" | "wrong">("");
  useTheme();

  const load = async () => {
    try {
      setModels(await listModels());
      setProblem("");
    } catch (error) {
      const loading = error instanceof ApiError && error.status === 503;
      setProblem(loading ? T.errors.loading : messageOf(error));
      if (loading) setTimeout(() => void load(), 2000);
    }
  };
  useEffect(() => {
    token.whenNeeded((wrong) => setAsking(wrong ? "wrong" : "needed"));
    whenFull(() => setFull(true));
    void load();
    const changed = () => {
      setView(viewOfUrl());
      setVisited((all) => new Set([...all, viewOfUrl()]));
    };
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);

  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")!.focus(); }}>{T.skip}</a>
      <header class="top">
        <h1>{T.title}</h1>
        <nav aria-label={T.title}>
          {VIEWS.map((one) => (
            <a key={one} href={`#${one}`} aria-current={view === one ? "page" : undefined}>{T.views[one]}</a>
          ))}
        </nav>
        <span class="spring" />
        <button type="button" class="small" onClick={() => setAsking("wanted")}>{T.token.button}</button>
        <label class="theme">
          <span class="sr">{T.theme.label}</span>
          <select value={theme()} onChange={(event) => setTheme(event.currentTarget.value as Theme)}>
            {(["auto", "light", "dark"] as const).map((one) => <option key={one} value={one}>{T.theme[one]}</option>)}
          </select>
        </label>
      </header>
      <main id="main" tabIndex={-1}>
        <h2 class="sr">{T.views[view]}</h2>
        {problem && asking === "" && (
          <Problem text={problem}><button type="button" class="small" onClick={() => void load()}>{T.errors.retry}</button></Problem>
        )}
        {full && <Problem text={T.errors.storage} />}
        {VIEWS.map((one) => visited.has(one) && (
          <div key={one} hidden={view !== one}>
            {one === "chat" && <Chat models={models} />}
            {one === "compare" && <Compare models={models} />}
            {one === "score" && <Score models={models} />}
            {one === "server" && <ServerView models={models} shown={view === "server"} session={session} />}
          </div>
        ))}
      </main>
      <TokenDialog
        open={asking !== ""}
        wrong={asking === "wrong"}
        onClose={(changed) => {
          setAsking("");
          if (!changed) return;
          setSession(session + 1);
          void load();
        }}
      />
    </>
  );
}

render(<App />, document.getElementById("app")!);

// Light and dark: the system's choice, or the user's. Colours are variables of the style sheet; canvases read them here.
import {useEffect, useState} from "preact/hooks";
import {loadText, saveText} from "./store";

export type Theme = "auto" | "light" | "dark";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();
let chosen = loadText("theme", "auto") as Theme;
let colours = new Map<string, string>();
let changes = 0;

function apply(): void {
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  colours = new Map();
  ++changes;
  for (const listener of listeners) listener();
}
apply();
system.addEventListener("change", apply);

export const theme = () => chosen;
export function setTheme(next: Theme): void {
  chosen = next;
  saveText("theme", next);
  apply();
}

// Changes with the theme.
export function useTheme(): number {
  const [now, set] = useState(changes);
  useEffect(() => {
    const listener = () => set(changes);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return now;
}

// The value of a colour variable now.
export function colour(name: string): string {
  let value = colours.get(name);
  if (value === undefined) {
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    value = getComputedStyle(probe).color;
    probe.remove();
    colours.set(name, value);
  }
  return value;
}

// Light, dark, or as the system says; charts read their colours from the style sheet.
import { useEffect, useState } from "preact/hooks";

export type Theme = "auto" | "light" | "dark";
const ORDER: Theme[] = ["auto", "light", "dark"];
const dark = window.matchMedia("(prefers-color-scheme: dark)");

function stored(): Theme {
  const value = localStorage.getItem("theme") as Theme | null;
  return value && ORDER.includes(value) ? value : "auto";
}

function apply(theme: Theme): void {
  const shown = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  document.documentElement.dataset.theme = shown;
  window.dispatchEvent(new Event("theme"));
}

export function startTheme(): void {
  apply(stored());
  dark.addEventListener("change", () => apply(stored()));
}

export function useTheme(): [Theme, () => void] {
  const [theme, set] = useState(stored);
  const next = () => {
    const chosen = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length]!;
    localStorage.setItem("theme", chosen);
    set(chosen);
    apply(chosen);
  };
  return [theme, next];
}

// Grows whenever the colours change, so that canvases are drawn anew.
export function useThemeVersion(): number {
  const [version, set] = useState(0);
  useEffect(() => {
    const grow = () => set((v) => v + 1);
    window.addEventListener("theme", grow);
    return () => window.removeEventListener("theme", grow);
  }, []);
  return version;
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

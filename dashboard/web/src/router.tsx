// Addresses without a library: history, one link component, one hook.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

export function go(to: string, replace = false): void {
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  window.dispatchEvent(new Event("moved"));
  if (!replace) window.scrollTo(0, 0);
}

export function useAddress(): URL {
  const [address, set] = useState(() => new URL(location.href));
  useEffect(() => {
    const update = () => set(new URL(location.href));
    window.addEventListener("popstate", update);
    window.addEventListener("moved", update);
    return () => {
      window.removeEventListener("popstate", update);
      window.removeEventListener("moved", update);
    };
  }, []);
  return address;
}

interface LinkProps {
  to: string;
  class?: string;
  current?: boolean;
  children: ComponentChildren;
}

export function Link({ to, current, children, ...rest }: LinkProps) {
  const click = (event: MouseEvent) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    go(to);
  };
  return (
    <a href={to} onClick={click} aria-current={current ? "page" : undefined} {...rest}>
      {children}
    </a>
  );
}

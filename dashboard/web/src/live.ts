// Server-sent events that survive a sleeping laptop: a stream that stays silent beyond its heartbeat is opened again.
import { useEffect, useRef, useState } from "preact/hooks";

export type LiveState = "connecting" | "live" | "lost";
type Handlers = Record<string, (data: any) => void>;
const SILENCE_MS = 35_000;

export function useLive(url: string | null, handlers: Handlers): LiveState {
  const [state, setState] = useState<LiveState>("connecting");
  const latest = useRef(handlers);
  latest.current = handlers;
  useEffect(() => {
    if (!url) return;
    let source: EventSource;
    let heard = Date.now();
    let position = "";
    const alive = () => {
      heard = Date.now();
      setState("live");
    };
    const open = () => {
      const resumed = position && url.includes("after=") ? url.replace(/after=\d+/, `after=${position}`) : url;
      source = new EventSource(resumed);
      source.onopen = alive;
      source.onerror = () => setState("lost");
      source.addEventListener("ping", alive);
      for (const kind of Object.keys(latest.current)) {
        source.addEventListener(kind, (message) => {
          alive();
          if (message.lastEventId) position = message.lastEventId;
          latest.current[kind]?.(JSON.parse(message.data));
        });
      }
    };
    open();
    const watch = setInterval(() => {
      // A browser gives up on a stream that was answered with an error; it also misses connections that died silently.
      if (source.readyState === EventSource.CLOSED || Date.now() - heard > SILENCE_MS) {
        heard = Date.now();
        source.close();
        setState("lost");
        open();
      }
    }, 2000);
    return () => {
      clearInterval(watch);
      source.close();
    };
  }, [url]);
  return state;
}

import { render } from "preact";
import { App } from "./app";
import "./style.css";
import "./admin.css";
import { startTheme } from "./theme";

startTheme();
render(<App />, document.getElementById("app")!);

import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "../fedrep_dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    // Inlined assets and preload scripts would need holes in the Content-Security-Policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
});

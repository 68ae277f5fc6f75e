// Search without a server. A page from the file system may not start a worker, so there it runs in a hidden frame.
// Our own few lines in place of the ones that the theme would fetch from a CDN at every visit.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inside = new Promise((resolve) => {
        frame.onload = () => {
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = frame.contentDocument.createElement("script");
          script.src = url;
          script.onload = () => resolve(inner);
          frame.contentDocument.body.append(script);
        };
      });
      frame.srcdoc = "<!doctype html><body>";
      document.body.append(frame);
    }
    postMessage(data) {
      this.inside.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}

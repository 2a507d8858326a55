package catalogpages_test

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

func (b *browser) navigate(path string) {
	b.t.Helper()
	address := path
	if filepath.IsAbs(path) {
		address = (&url.URL{Scheme: "file", Path: path}).String()
	}
	n := b.eventCount()
	b.call("Page.navigate", map[string]any{"url": address}, nil)
	b.waitForEvent(n, "Page.loadEventFired")
}

// eval evaluates a JavaScript expression in the page and unmarshals its value into *into.
func (b *browser) eval(expression string, into any) {
	b.t.Helper()
	var out struct {
		Result struct {
			Value jsontext.Value `json:"value"`
		} `json:"result"`
		Exception jsontext.Value `json:"exceptionDetails"`
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	if out.Exception != nil {
		b.t.Fatalf("%s: %s", expression, out.Exception)
	}
	if into != nil {
		if err := json.Unmarshal(out.Result.Value, into); err != nil {
			b.t.Fatalf("%s: %v in %s", expression, err, out.Result.Value)
		}
	}
}

// text returns the value of a JavaScript expression, which must be a string.
func (b *browser) text(expression string) string {
	b.t.Helper()
	var out string
	b.eval("String("+expression+")", &out)
	return out
}

// pressKeys presses keys. Each argument is a string to type, or the name of a key such as ArrowDown.
func (b *browser) pressKeys(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		press := map[string]any{"type": "keyDown", "key": key, "code": key}
		switch key {
		case "Enter":
			press["text"], press["windowsVirtualKeyCode"] = "\r", 13
		case "Tab":
			press["windowsVirtualKeyCode"] = 9
		case "Escape":
			press["windowsVirtualKeyCode"] = 27
		case "ArrowDown":
			press["windowsVirtualKeyCode"] = 40
		case "ArrowUp":
			press["windowsVirtualKeyCode"] = 38
		default:
			press["text"] = key
		}
		b.call("Input.dispatchKeyEvent", press, nil)
		b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key}, nil)
	}
}

func (b *browser) typeText(text string) {
	b.t.Helper()
	b.pressKeys(strings.Split(text, "")...)
}

func (b *browser) setWindow(width int, scheme string) {
	b.t.Helper()
	height := 900
	if width < 600 {
		height = 844
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{
		{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"},
	}}, nil)
}

// screenshot stores a picture of the beginning of the page, or of the end of the page if the parameter end is true. The
// parameter most is the maximum height of the picture in pixels.
func (b *browser) screenshot(file string, most float64, end bool) {
	b.t.Helper()
	var size struct{ Width, Height float64 }
	b.eval("({Width: innerWidth, Height: document.documentElement.scrollHeight})", &size)
	from := 0.0
	if end {
		from = max(0, size.Height-most)
	}
	var shot struct {
		Data string `json:"data"`
	}
	b.call("Page.captureScreenshot", map[string]any{
		"format": "png", "captureBeyondViewport": true,
		"clip": map[string]any{"x": 0, "y": from, "width": size.Width, "height": min(size.Height, most), "scale": 1},
	}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(file, png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// reportedErrors returns the errors and the policy violations that the browser reported, and its requests for URLs
// other than file: and about: URLs.
func (b *browser) reportedErrors() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, e := range b.events {
		switch e.Method {
		case "Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled":
			out = append(out, fmt.Sprintf("%s: %s", e.Method, e.Params))
		case "Network.requestWillBeSent":
			var sent struct {
				Request struct {
					URL string `json:"url"`
				} `json:"request"`
			}
			if err := json.Unmarshal(e.Params, &sent); err != nil || !strings.HasPrefix(sent.Request.URL, "file://") && !strings.HasPrefix(sent.Request.URL, "about:") {
				out = append(out, fmt.Sprintf("a request: %s %v", sent.Request.URL, err))
			}
		}
	}
	return out
}

package catalogpages_test

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// browser is a Chromium process that a test controls with the DevTools protocol over two pipes. It has one tab, and
// only one test uses it.
type browser struct {
	t       *testing.T
	to      io.Writer
	session string

	mu      sync.Mutex
	last    int
	waiting map[int]chan jsontext.Value
	events  []event
	arrived *sync.Cond
}

type event struct {
	Method string         `json:"method"`
	Params jsontext.Value `json:"params"`
}

// startBrowser starts a browser. If Chromium is missing, the test fails, or is skipped if SLUICE_TEST_NO_BROWSER is
// set.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	switch {
	case err != nil && os.Getenv("SLUICE_TEST_NO_BROWSER") != "":
		t.Skip(err)
	case err != nil:
		t.Fatalf("install chromium (Debian: `chromium`); where it can't be helped, SLUICE_TEST_NO_BROWSER=1 leaves this out: %v", err)
	}
	args := []string{"--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + profileFolder(t), "--no-first-run", "--disable-breakpad", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"}
	if os.Getuid() == 0 {
		args = append(args, "--no-sandbox") // root can't use Chromium's sandbox
	}
	cmd := exec.CommandContext(t.Context(), path, append(args, "about:blank")...)
	in, to := pipe(t)
	from, out := pipe(t)
	cmd.ExtraFiles = []*os.File{in, out}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.Close()
	b := &browser{t: t, to: to, waiting: make(map[int]chan jsontext.Value)}
	b.arrived = sync.NewCond(&b.mu)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.readEvents(from)
	}()
	t.Cleanup(func() {
		to.Close() // the browser ends when its input ends
		_ = cmd.Wait()
		<-ended
	})
	b.attach()
	return b
}

// profileFolder returns a directory for a browser's profile. Some of the browser's child processes still write to the
// directory after the main process has exited.
func profileFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "chromium-") //nolint:usetesting // t.TempDir would fail the test while a process still writes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		eventually.Holds(t, "the browser's folder goes", func() bool { return os.RemoveAll(dir) == nil })
	})
	return dir
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r, w
}

func (b *browser) readEvents(from io.Reader) {
	messages := bufio.NewReaderSize(from, 1<<20)
	for {
		text, err := messages.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			event

			ID     int            `json:"id"`
			Result jsontext.Value `json:"result"`
			Error  jsontext.Value `json:"error"`
		}
		if json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m) != nil {
			continue
		}
		b.mu.Lock()
		if answer := b.waiting[m.ID]; answer != nil && m.ID > 0 {
			if m.Error != nil {
				m.Result = jsontext.Value(`{"failed":` + string(m.Error) + `}`)
			}
			answer <- m.Result
			delete(b.waiting, m.ID)
		} else {
			b.events = append(b.events, event{m.Method, m.Params.Clone()})
			b.arrived.Broadcast()
		}
		b.mu.Unlock()
	}
}

func (b *browser) attach() {
	b.t.Helper()
	var targets struct {
		TargetInfos []struct {
			TargetID string `json:"targetId"`
			Type     string `json:"type"`
		} `json:"targetInfos"`
	}
	for len(targets.TargetInfos) == 0 {
		b.call("Target.getTargets", nil, &targets)
	}
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	for _, info := range targets.TargetInfos {
		if info.Type == "page" {
			b.call("Target.attachToTarget", map[string]any{"targetId": info.TargetID, "flatten": true}, &attached)
		}
	}
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
}

func (b *browser) call(method string, params map[string]any, into any) {
	b.t.Helper()
	answer := make(chan jsontext.Value, 1)
	b.mu.Lock()
	b.last++
	id := b.last
	b.waiting[id] = answer
	b.mu.Unlock()
	if params == nil {
		params = map[string]any{}
	}
	message := map[string]any{"id": id, "method": method, "params": params}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	text, err := json.Marshal(message)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatal(err)
	}
	select {
	case raw := <-answer:
		if bytes.HasPrefix(raw, []byte(`{"failed"`)) {
			b.t.Fatalf("%s: %s", method, raw)
		}
		if into != nil {
			if err := json.Unmarshal(raw, into); err != nil {
				b.t.Fatalf("%s: %v in %s", method, err, raw)
			}
		}
	case <-time.After(30 * time.Second):
		b.t.Fatalf("%s: no answer", method)
	}
}

// waitForEvent waits for an event with this method, and ignores the first n events.
func (b *browser) waitForEvent(n int, method string) {
	b.t.Helper()
	late := time.AfterFunc(30*time.Second, b.arrived.Broadcast)
	defer late.Stop()
	until := time.Now().Add(30 * time.Second)
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		for ; n < len(b.events); n++ {
			if b.events[n].Method == method {
				return
			}
		}
		if !time.Now().Before(until) {
			b.t.Fatalf("no %s", method)
		}
		b.arrived.Wait()
	}
}

func (b *browser) eventCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.events)
}

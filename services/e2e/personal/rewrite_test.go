package personal_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// countStarts acts as a client that repeatedly reads its file, increments the number of starts in it, and writes the
// file, until ctx is done. It returns the last number.
func countStarts(ctx context.Context, path string, inPlace bool) (starts int, err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return starts, nil
		case <-tick.C:
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return starts, err
		}
		last := fmt.Sprintf(`"numStartups": %d,`, starts)
		if !strings.Contains(string(data), last) { // init has exchanged the file, and is about to exchange it again
			continue
		}
		starts++
		after := []byte(strings.Replace(string(data), last, fmt.Sprintf(`"numStartups": %d,`, starts), 1))
		if inPlace {
			err = os.WriteFile(path, after, 0o600)
		} else {
			err = errors.Join(os.WriteFile(path+".theirs", after, 0o600), os.Rename(path+".theirs", path))
		}
		if err != nil {
			return starts, err
		}
	}
}

// A client rewrites its configuration file continually while `sluice init` is running. After that, the file contains
// what the client wrote last, and its entry is either the original entry or the entry that `sluice init` has written.
// When the client is closed, another `sluice init` completes, and `sluice init --undo` restores the entry.
func TestInit_AClientRewritesItsFile(t *testing.T) {
	t.Parallel()
	for way, inPlace := range map[string]bool{"by rename": false, "in place": true} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			old := `"notes": {"command": "` + h.program + `", "args": ["demo-server", "--stdio"]}`
			file := `{"numStartups": %d, "mcpServers": {` + old + `}}`
			h.write(claudePath, fmt.Sprintf(file, 0))
			ctx, cancel := context.WithCancel(t.Context())
			starts, done := 0, make(chan error, 1)
			go func() {
				var err error
				starts, err = countStarts(ctx, filepath.Join(h.dir, claudePath), inPlace)
				done <- err
			}()
			code, out := h.run("init", "--yes")
			cancel()
			if err := <-done; err != nil || starts == 0 {
				t.Fatalf("the client has counted %d starts: %v", starts, err)
			}
			t.Logf("init exits with %d after %d starts", code, starts)
			var now struct {
				NumStartups int
				MCPServers  map[string]struct{ Args []string }
			}
			text := h.read(claudePath)
			if err := json.Unmarshal([]byte(text), &now); err != nil || now.NumStartups != starts {
				t.Errorf("after %d starts, the file is %s (%v), and init prints\n%s", starts, text, err, out)
			}
			args := strings.Join(now.MCPServers["notes"].Args, " ")
			if args != "demo-server --stdio" && args != "stdio --server notes --as claude-code --config "+filepath.Join(h.dir, ".config/sluice/sluice.yaml") {
				t.Errorf("the entry has the arguments %q", args)
			}
			h.check(0, []string{"init", "--yes"})
			if text := h.read(claudePath); !strings.Contains(text, `"--as", "claude-code"`) || !strings.Contains(text, fmt.Sprintf(`"numStartups": %d,`, starts)) {
				t.Errorf("the file is %s", text)
			}
			h.check(0, []string{"init", "--undo", "--yes"})
			if text := h.read(claudePath); text != fmt.Sprintf(file, starts) {
				t.Errorf("after undo, the file is %s", text)
			}
		})
	}
}

// The test measures the time from the user's first command to the first refused call, with one server. The time is not
// limited, because it depends on the machine. SLUICE_FIRST is the number of measurements.
func TestInit_FirstRefusal(t *testing.T) {
	t.Parallel()
	n := 1
	if text, ok := os.LookupEnv("SLUICE_FIRST"); ok {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	program := stack.Program(t, "sluice") // building it takes no time of the measurement
	for range n {
		h := newHome(t)
		h.write(cursorPath, `{"mcpServers": {"notes": {"command": "`+program+`", "args": ["demo-server", "--stdio"]}}}`)
		start := time.Now()
		h.check(0, []string{"init", "--yes"})
		wrapped := time.Since(start)
		command, args := h.entry(cursorPath, "notes")
		if text, isError := h.call(h.connect(command, args...), "no_such_tool", nil); !isError || !strings.Contains(text, "Denied by policy") {
			t.Errorf("an unknown tool returns %s", text)
		}
		t.Logf("init takes %.1f s, and the first refusal comes %.1f s after the first command", wrapped.Seconds(), time.Since(start).Seconds())
	}
}

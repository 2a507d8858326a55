package approvals_test

import (
	"bufio"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// At a terminal, `sluice up` announces the first approval at once. The next line announces all approvals of the
// following 5 s. The lines contain no name from the call.
func TestUp_AnnouncesApprovalsAtATerminal(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer terminal.Close()
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: rulesPolicy, Tokens: financePeople,
		Extra: "groups: {finance: [ana, ben]}\napprovals: {hold: 0s}",
	})
	s.Wrapper = []string{"sh", "-c", `exec "$@" 2>"$0"`, terminal.Name()}
	f := &rawmesh.Mesh{Upstream: up, Stack: stack.Start(t, s).Stack}
	c, began := f.Connect(t), time.Now()
	c.Call("pay", `{"n":1}`)
	pay := f.AwaitOnePending(t)

	deadline := time.AfterFunc(time.Minute, func() { _ = screen.Close() })
	defer deadline.Stop()
	lines := bufio.NewScanner(screen)
	next := func(want ...string) string {
		t.Helper()
		for lines.Scan() {
			line, rings := strings.CutPrefix(lines.Text(), "\a")
			if !rings { // a log message
				continue
			}
			for _, part := range want {
				if !strings.Contains(line, part) {
					t.Errorf("%q is not in %q", part, line)
				}
			}
			if strings.Contains(line, "pay") || strings.Contains(line, "raw") {
				t.Errorf("the line names the call: %q", line)
			}
			return line
		}
		t.Fatalf("no announcement: %v", lines.Err())
		return ""
	}
	next("sluice: 1 call waits for approval: `", " approvals show "+pay+"`")
	for n := range 3 {
		c.Call("send", fmt.Sprintf(`{"n":%d}`, n))
	}
	newest := f.ListApprovals(t)[0].ID
	line := next(" of them new: `", " approvals list`; the newest: `")
	if after := time.Since(began); after < 5*time.Second {
		t.Errorf("the second line was printed after %v: %q", after, line)
	}
	for !strings.Contains(line, "sluice: 4 calls wait for approval, ") { // on a slow machine, the calls take longer than 5 s
		line = next()
	}
	if !strings.Contains(line, " approvals show "+newest+"`") {
		t.Errorf("the last line does not have the id %s: %q", newest, line)
	}
}

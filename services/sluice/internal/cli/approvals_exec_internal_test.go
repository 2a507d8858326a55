package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// viewClient returns a view with a classification for every approval except "c". For approval "c" it returns an error.
type viewClient struct {
	approvalv1.ApprovalServiceClient
}

func (viewClient) GetApproval(_ context.Context, req *approvalv1.GetApprovalRequest, _ ...grpc.CallOption) (*approvalv1.GetApprovalResponse, error) {
	if req.GetApprovalId() == "c" {
		return nil, errors.New(hostile)
	}
	return &approvalv1.GetApprovalResponse{View: &approvalv1.View{Classification: &policyv1.Classification{Category: mcpv1.Category_CATEGORY_FINANCIAL, Risk: policyv1.Risk_RISK_HIGH}}}, nil
}

// lockedBuffer sends each line that is written to it to a channel.
type lockedBuffer struct {
	mu    sync.Mutex
	text  bytes.Buffer
	lines chan string
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	for {
		line, err := b.text.ReadString('\n')
		if err != nil {
			b.text.WriteString(line)
			return len(p), nil
		}
		b.lines <- line
	}
}

// The state of an approval changes several times. The command runs only when the approval becomes pending for the first
// time. For a second approval, the command gets the number of pending approvals. An approval is ignored if its
// identifier is unsafe in an environment variable.
func TestApprovalCommand_RunsOncePerApproval(t *testing.T) {
	t.Parallel()
	out := &lockedBuffer{lines: make(chan string, 100)}
	e, stop, err := newTool("sluice", out, out).startApprovalCommand(t.Context(), []string{"sh", "-c", "cat"})
	if err != nil {
		t.Skip(err)
	}
	defer stop()
	move := func(id string, state approvalv1.ApprovalState) {
		a := &approvalv1.Approval{Id: id, State: state, Name: "pay\x1b[2J\n", Requested: timestamppb.Now()}
		if state == approvalv1.ApprovalState_APPROVAL_STATE_DENIED {
			a.Ended = timestamppb.Now()
		}
		e.moved(t.Context(), viewClient{}, a)
	}
	expect := func(parts ...string) {
		t.Helper()
		select {
		case line := <-out.lines:
			for _, part := range parts {
				if !strings.Contains(line, part) {
					t.Errorf("%s is not in %s", part, line)
				}
			}
		case <-time.After(time.Minute):
			t.Fatal("the command was not run")
		}
	}
	const pending, approved, denied = approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED, approvalv1.ApprovalState_APPROVAL_STATE_DENIED
	move("a", approved)
	move("a", pending)
	expect(`"id":"a"`, `"category":"financial"`, `"risk":"high"`, `"pending":1`, `"tool":"pay\u001b[2J\n"`)
	move("a", pending)
	move("a", approved)
	move("a", pending)
	move("x; rm", pending)
	move("b", pending)
	expect(`"id":"b"`, `"pending":2`)
	move("a", denied)
	move("c", pending)
	expect("sluice: the command is run without the class of the tool for approval c: ", "FORGED") // in one line
	expect(`"id":"c"`, `"pending":2`)
	if len(e.open) != 2 {
		t.Errorf("the ended approval is still stored: %v", e.open)
	}
}

// Each command waits until the test creates a file, so 4 commands are running and 100 are queued. Further approvals
// wait until the queue has room. If such an approval ends before that, the command is not run for it.
func TestApprovalCommand_RunsLaterForApprovalsOfAFlood(t *testing.T) {
	t.Parallel()
	const flood = 120
	open := filepath.Join(t.TempDir(), "open")
	ran, told := &lockedBuffer{lines: make(chan string, 2*flood)}, new(bytes.Buffer)
	e, stop, err := newTool("sluice", ran, ran).startApprovalCommand(t.Context(), []string{"sh", "-c", `until test -e "$1"; do sleep 0.02; done; echo "$SLUICE_APPROVAL_ID"`, "sh", open})
	if err != nil {
		t.Skip(err)
	}
	defer stop()
	e.tool = newTool("sluice", told, told) // messages of the watch, but not of the commands
	move := func(n int, ended *timestamppb.Timestamp) {
		e.moved(t.Context(), viewClient{}, &approvalv1.Approval{Id: fmt.Sprint("id-", n), State: approvalv1.ApprovalState_APPROVAL_STATE_PENDING, Ended: ended})
	}
	for n := range flood {
		move(n, nil)
	}
	if !strings.Contains(told.String(), fmt.Sprintf("the command is run later for %d more approvals\n", len(e.waiting))) || len(e.waiting) < flood-104 {
		t.Errorf("%d approvals wait: %s", len(e.waiting), told)
	}
	move(flood-1, timestamppb.Now())
	if err := os.WriteFile(open, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]int)
	for len(seen) < flood-1 {
		e.moved(t.Context(), viewClient{}, nil) // a heartbeat
		select {
		case line := <-ran.lines:
			seen[strings.TrimSpace(line)]++
		case <-time.After(time.Minute):
			t.Fatalf("the command was run for %d approvals", len(seen))
		}
	}
	stop()
	if seen[fmt.Sprint("id-", flood-1)] != 0 || len(ran.lines) != 0 || len(e.waiting) != 0 {
		t.Errorf("also run for %v, %d lines, %d wait", seen[fmt.Sprint("id-", flood-1)], len(ran.lines), len(e.waiting))
	}
}

func TestApprovalsWatch_ExecNeedsACommandThatExists(t *testing.T) {
	t.Parallel()
	dir := hostileMesh(t)
	for want, line := range map[string][]string{
		"requires at least 1 arg":  {"--exec"},
		"--exec: find the command": {"--exec", "/nonexistent/notify", "--server", "x"},
		"unknown command \"x\"":    {"x"},
	} {
		var out, errOut bytes.Buffer
		args := append([]string{"approvals", "watch", "--config", dir + "/sluice.yaml"}, line...)
		if code := newTool("sluice", &out, &errOut).run(t.Context(), args); code != 2 || !strings.Contains(errOut.String(), want) {
			t.Errorf("%v: exit code %d, %s, want %q", line, code, errOut.String(), want)
		}
	}
}

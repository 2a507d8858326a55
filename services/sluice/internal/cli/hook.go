package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hookevent"
	"github.com/sluice-mesh/sluice/services/sluice/internal/hooksetup"
	"github.com/sluice-mesh/sluice/services/sluice/internal/tokenhttp"
)

const (
	// maxHookEvent is the maximum size in bytes of an event from a client. maxHookAnswer is the maximum size in bytes of
	// the mesh's response.
	maxHookEvent  = 8 << 20
	maxHookAnswer = 1 << 20
	// hookSlack is how long the hook can take in addition to the time in which it waits for people. For example, it may
	// have to start a mesh.
	hookSlack = 30 * time.Second
)

func (t *tool) hook() *cobra.Command {
	hold := hooksetup.Hold
	c := &cobra.Command{
		Use:   "hook CLIENT",
		Short: "Decide whether a call to a client's own tool, such as its shell, is allowed",
		Long: `Read an event of a client's hook on standard input, ask the mesh whether the call is allowed,
and print the answer of the hook. Clients run this command; ` + "`hook install`" + ` registers it. CLIENT
is ` + strings.Join(hosttools.Clients(), ", ") + `.

If anything fails, the call is denied. A call to a tool of an MCP server is not denied if the
server is behind the mesh, because the mesh checks the call when the client sends it. If the
server is not behind the mesh, the call is denied.`,
		Args: args(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, given []string) error {
			return t.printHook(t.answerHook(c.Context(), given[0], hold))
		},
	}
	c.Flags().DurationVar(&hold, "hold", hold, "the time for which a call waits for a person; keep it below the client's time-out for hooks")
	c.AddCommand(t.hookInstall(), t.hookRemove(), t.hookStatus())
	return c
}

// printHook prints the output of a hook. If this fails, printHook returns an error, because the client must not treat
// missing output as permission.
func (t *tool) printHook(out hookevent.Output) error {
	if _, err := io.WriteString(os.Stdout, out.Stdout); err != nil {
		return exitError{fmt.Errorf("the call is denied, because the answer can't be printed: %w", err), 2} //nolint:mnd // see hookevent
	}
	_, _ = io.WriteString(os.Stderr, out.Stderr) // an error does not matter, because the client may ignore standard error
	if out.Code != 0 {
		return exitError{errSilent, out.Code}
	}
	return nil
}

// answerHook returns the output for the event on standard input. The call is denied if the timeout expires or the
// client stops the hook.
func (t *tool) answerHook(ctx context.Context, client string, hold time.Duration) hookevent.Output {
	e := hookevent.Event{Client: client}
	if hosttools.Name(client) == "" {
		return e.Failed(fmt.Sprintf("%q is not one of %s", client, strings.Join(hosttools.Clients(), ", ")))
	}
	limited, cancel := context.WithTimeout(ctx, hold+hookSlack)
	defer cancel()
	answer := make(chan hookevent.Output, 1)
	go func() { answer <- t.answerEvent(limited, client, os.Stdin, hold) }() // a read can't be interrupted when the context is done
	select {
	case out := <-answer:
		return out
	case <-limited.Done():
		if ctx.Err() != nil {
			return e.Failed("the hook was stopped")
		}
		return e.Failed(fmt.Sprintf("there was no answer within %v", hold+hookSlack))
	}
}

// answerEvent reads an event and returns the hook's output.
func (t *tool) answerEvent(ctx context.Context, client string, in io.Reader, hold time.Duration) hookevent.Output {
	e := hookevent.Event{Client: client}
	raw, err := io.ReadAll(io.LimitReader(in, maxHookEvent+1))
	switch {
	case err != nil:
		return e.Failed("read standard input: " + err.Error())
	case len(raw) > maxHookEvent:
		return e.Failed(fmt.Sprintf("the event has more than %d MiB", maxHookEvent>>20))
	}
	if e, err = hookevent.Parse(client, raw); err != nil {
		return e.Failed(err.Error())
	}
	switch {
	case e.Kind == hookevent.Ignored:
		return e.Passed()
	case e.MCP != nil:
		return t.answerMCP(e)
	}
	verdict, err := t.askMesh(ctx, e, hold)
	if err != nil {
		return e.Failed(err.Error())
	}
	return outputOf(e, verdict)
}

// outputOf returns the output for a verdict from the mesh. An unknown verdict denies the call.
func outputOf(e hookevent.Event, v meshVerdict) hookevent.Output {
	switch v.Verdict {
	case "pass":
		return e.Passed()
	case "allow":
		return e.Allowed("A person approved this call in Sluice (decision " + v.Decision + ").")
	default:
		return e.Denied(v.Reason)
	}
}

// meshVerdict is the mesh's response to an event.
type meshVerdict struct {
	Verdict  string `json:"verdict"`
	Reason   string `json:"reason"`
	Code     string `json:"code"`
	Decision string `json:"decision"`
}

// askMesh sends an event to the mesh of the person who runs the client. It starts the mesh if necessary.
func (t *tool) askMesh(ctx context.Context, e hookevent.Event, hold time.Duration) (verdict meshVerdict, err error) {
	own, err := t.hookMesh()
	if err != nil {
		return verdict, err
	}
	token, err := os.ReadFile(own.paths.Token(e.Client))
	if err != nil {
		return verdict, fmt.Errorf("%s has no token for your mesh: run %s (%w)", e.Client, t.command("hook install "+e.Client), err)
	}
	if e.Input, err = t.markProtected(own, e); err != nil {
		return verdict, err
	}
	body, err := hookBody(e, hold)
	if err != nil {
		return verdict, err
	}
	for first := true; ; first = false {
		mesh, err := own.find(ctx, true)
		if err != nil {
			return verdict, err
		}
		verdict, err = postHook(ctx, "http://"+mesh.MCP+"/hook/"+e.Client, strings.TrimSpace(string(token)), body)
		if dial, ok := errors.AsType[*net.OpError](err); first && ok && dial.Op == "dial" { // the mesh has just exited
			continue
		}
		return verdict, err
	}
}

// hookBody returns the body of the request with which an event is sent to the mesh.
func hookBody(e hookevent.Event, hold time.Duration) ([]byte, error) {
	event := "call"
	if e.Kind == hookevent.Permission {
		event = "permission"
	}
	body, err := json.Marshal(struct {
		Event   string         `json:"event"`
		Tool    string         `json:"tool"`
		Input   jsontext.Value `json:"input"`
		ID      string         `json:"id,omitzero"`
		Session string         `json:"session,omitzero"`
		Turn    string         `json:"turn,omitzero"`
		HoldMS  int64          `json:"hold_ms"`
	}{event, e.Tool, e.Input, e.ID, e.Session, e.Turn, hold.Milliseconds()})
	if err != nil {
		return nil, fmt.Errorf("write the event for the mesh: %w", err)
	}
	return body, nil
}

func postHook(ctx context.Context, url, token string, body []byte) (verdict meshVerdict, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return verdict, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := tokenhttp.New(nil, "").Do(req)
	if err != nil {
		return verdict, fmt.Errorf("ask the mesh: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxHookAnswer))
	if err != nil {
		return verdict, fmt.Errorf("ask the mesh: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return verdict, fmt.Errorf("the mesh answers with HTTP status %d: %s", resp.StatusCode, rpcMessage(raw))
	}
	if err := json.Unmarshal(raw, &verdict); err != nil {
		return verdict, fmt.Errorf("the answer of the mesh is not understood: %w", err)
	}
	return verdict, nil
}

// rpcMessage returns the message of a JSON-RPC error, or the beginning of the response if it is not a JSON-RPC error.
func rpcMessage(raw []byte) string {
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(raw, &answer) == nil && answer.Error.Message != "" {
		return answer.Error.Message
	}
	const maxLength = 200
	return strings.ToValidUTF8(string(raw[:min(len(raw), maxLength)]), "")
}

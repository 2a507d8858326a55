package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

type listedTool struct {
	Server      string `json:"server"`
	Name        string `json:"name"`
	Description string `json:"description"`
}

func (t *tool) tools() *cobra.Command {
	c := &cobra.Command{
		Use:   "tools [SERVER]",
		Short: "List the tools that the agent may see",
		Long: `List the tools that the agent may see, of one server or of all. On standard error, the command
names the servers that return no list, and exits with 1 if there are any, and the servers that
policy hides from the agent.`,
		Args:              args(cobra.MaximumNArgs(1)),
		ValidArgsFunction: t.completeServer,
		RunE: func(c *cobra.Command, given []string) error {
			if len(given) == 1 {
				tools, err := t.listTools(c.Context(), given[0])
				if err != nil {
					return err
				}
				return t.printTools(tools)
			}
			servers, err := t.allServerNames(c.Context())
			if err != nil {
				return err
			}
			return t.printAllTools(t.listToolsOfServers(c.Context(), servers))
		},
	}
	t.asFlag(c)
	return c
}

// listTimeout is the timeout for the requests to one server when the tools of all servers are listed.
const listTimeout = 30 * time.Second

// serverTools contains the tools of a server, or the error from listing them.
type serverTools struct {
	server string
	tools  []listedTool
	err    error
}

// listToolsOfServers lists the tools of all servers. It sends requests to [maxConcurrentChecks] servers concurrently.
func (t *tool) listToolsOfServers(ctx context.Context, servers []string) []serverTools {
	out := make([]serverTools, len(servers))
	var group errgroup.Group
	group.SetLimit(maxConcurrentChecks)
	for i, server := range servers {
		own := *t // a copy, because each goroutine records the target of its request
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			tools, err := own.listTools(ctx, server)
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("the server did not answer within %v", listTimeout)
			}
			out[i] = serverTools{server: server, tools: tools, err: err}
			return nil
		})
	}
	_ = group.Wait() // the errors are in out
	return out
}

// printAllTools prints the tools of the servers that returned a list. For the other servers, it prints the reason on
// standard error.
func (t *tool) printAllTools(found []serverTools) error {
	all, failed := []listedTool{}, false
	for _, f := range found {
		all = append(all, f.tools...)
		failed = failed || f.err != nil && !isAbsent(f.err)
	}
	if err := t.printTools(all); err != nil {
		return err
	}
	for _, f := range found {
		switch {
		case isAbsent(f.err):
			_ = oneLine(t.errOut, "sluice: %v", f.err)
		case f.err != nil:
			_ = oneLine(t.errOut, "sluice: the tools of server %s are not listed: %v; %s finds the problem", f.server, f.err, t.command("doctor"))
		}
	}
	if failed {
		return errSilent
	}
	return nil
}

func isAbsent(err error) bool {
	_, absent := errors.AsType[absentError](err)
	return absent
}

func (t *tool) listTools(ctx context.Context, server string) ([]listedTool, error) {
	s, err := t.connectMCP(ctx, server)
	if err != nil {
		return nil, err
	}
	defer s.close(ctx)
	var out []listedTool
	params := make(map[string]string)
	for {
		var page struct {
			Tools      []listedTool `json:"tools"`
			NextCursor string       `json:"nextCursor"`
		}
		raw, err := s.request(ctx, "tools/list", params)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("read the tools of %s: %w", server, err)
		}
		for _, l := range page.Tools {
			l.Server = server
			out = append(out, l)
		}
		if page.NextCursor == "" || page.NextCursor == params["cursor"] {
			return out, nil
		}
		params["cursor"] = page.NextCursor
	}
}

func (t *tool) printTools(all []listedTool) error {
	if t.json() {
		return t.printJSON(all)
	}
	rows := make([][]string, len(all))
	for i, l := range all {
		first, _, _ := strings.Cut(l.Description, "\n")
		rows[i] = []string{l.Server, l.Name, first}
	}
	return t.table([]string{"SERVER", "TOOL", "DESCRIPTION"}, rows)
}

func (t *tool) allServerNames(ctx context.Context) ([]string, error) {
	f, err := t.load()
	if err != nil {
		return nil, err
	}
	if t.as == "" {
		if _, err := t.readToken(f, agentToken); err != nil {
			return nil, err // every request for a list needs the agent's token
		}
	}
	names, err := t.serverNames(ctx)
	if _, ok := errors.AsType[wrongRoleError](err); ok {
		return nil, fmt.Errorf("%w; if you have only the agent's token, name a server: %s", err, t.command("tools SERVER"))
	}
	return names, err
}

func (t *tool) serverNames(ctx context.Context) ([]string, error) {
	f, err := t.load()
	if err != nil {
		return nil, err
	}
	ctx, cancel := requestContext(ctx)
	defer cancel()
	resp, err := t.gatewayStatus(ctx, f)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(resp.GetServers()))
	for i, s := range resp.GetServers() {
		names[i] = s.GetName()
	}
	return names, nil
}

func (t *tool) completeServer(c *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	_ = t.checkFlags(c, nil) // errors in flags are ignored, so that the completion still works
	names, err := t.serverNames(c.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func readInput(r io.Reader) (string, error) {
	raw, err := io.ReadAll(io.LimitReader(r, 4<<20))
	if err != nil {
		return "", fmt.Errorf("read standard input: %w", err)
	}
	return string(raw), nil
}

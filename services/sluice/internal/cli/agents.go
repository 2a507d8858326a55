package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// promptTimeout is the timeout for a prompt, which may wait for a model, a tool or an approval.
const promptTimeout = time.Hour

func (t *tool) agents() *cobra.Command {
	return group("agents", "Create agents in WebAssembly, prompt them, and terminate them",
		t.agentsCreate(), t.agentsPrompt(), t.agentsList(), t.agentsShow(), t.agentsFiles(),
		t.changeStateCommand("stop ID", "Stop an agent now, until it is resumed; a running prompt is undone", stopAgent),
		t.agentsResume(),
		t.changeStateCommand("reset ID", "Clear an agent's conversation, todos and turns; its files are not changed", resetAgent),
		t.changeStateCommand("terminate ID", "End an agent; it can be resumed for an hour", terminateAgent),
		t.agentsEvents(), t.agentsVerify(), t.agentsSnapshot(), t.agentsFork(), t.agentsMigrate(), t.agentsExport(), t.agentsImport(), t.agentsGrant(), t.agentsAccept())
}

// withAgents calls do with a client for the wasmagent service and a context with the given timeout.
func (t *tool) withAgents(ctx context.Context, within time.Duration, do func(context.Context, wasmagentv1.AgentServiceClient) error) error {
	f, err := t.load()
	if err != nil {
		return err
	}
	conn, err := t.dial(f, authv1.Role_ROLE_WASMAGENT)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return do(ctx, wasmagentv1.NewAgentServiceClient(conn))
}

func (t *tool) agentsCreate() *cobra.Command {
	var guest, instructions, template, model string
	var turns int32
	var tools []string
	c := &cobra.Command{
		Use: "create", Short: "Create an agent, and print its id", Args: args(cobra.NoArgs),
		Example: "  " + t.self + " agents create --template coder --tool 'demo/search_*'",
		RunE: func(c *cobra.Command, _ []string) error {
			req := new(wasmagentv1.CreateAgentRequest)
			if c.Flags().Changed("guest") {
				req.Guest = &guest
			}
			if c.Flags().Changed("model") {
				req.Model = &model
			}
			if c.Flags().Changed("template") {
				req.Template = &template
			}
			manifest, err := manifestOf(tools)
			if err != nil {
				return err
			}
			if manifest != nil && model != "" {
				manifest.Models = []*wasmagentv1.ModelRight{{Model: model}}
			}
			req.Manifest = manifest
			if c.Flags().Changed("instructions") {
				req.Instructions = &instructions
			}
			if c.Flags().Changed("max-turns") {
				req.MaxTurns = &turns
			}
			// The timeout is long because a guest is compiled before its first agent is created.
			return t.withAgents(c.Context(), time.Minute, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				resp, err := client.CreateAgent(ctx, req)
				if err != nil {
					return t.explainError(err)
				}
				if t.json() {
					return t.printJSON(newAgentRow(resp.GetAgent()))
				}
				t.printf("%s", resp.GetAgent().GetId())
				return nil
			})
		},
	}
	c.Flags().StringVar(&guest, "guest", "", "agent asks a model, script runs the commands in a prompt, echo returns the prompt; or a guest of the configuration (default agent with --model or agents.model, otherwise script)")
	c.Flags().StringVar(&model, "model", "", "the model, as PROVIDER:MODEL; script:lines is built in")
	c.Flags().StringVar(&instructions, "instructions", "", "instructions that the agent gets before all prompts")
	c.Flags().Int32Var(&turns, "max-turns", 50, "the maximum number of turns")
	c.Flags().StringVar(&template, "template", "", "coder, researcher, tester, reviewer, security, swarm-orchestrator, or an added template")
	c.Flags().StringArrayVar(&tools, "tool", nil, "a tool that the agent may call if policy allows it: SERVER/TOOL, with * in TOOL for any text; may be repeated")
	return c
}

// manifestOf returns the manifest for an agent that may call the given tools. If there are no tools, it returns nil,
// which means that the agent may access only its own files.
func manifestOf(tools []string) (*wasmagentv1.Manifest, error) {
	if len(tools) == 0 {
		return nil, nil //nolint:nilnil // nil is a valid manifest
	}
	out := &wasmagentv1.Manifest{Files: &wasmagentv1.FileRight{Bytes: 8 << 20, Count: 1000}}
	for _, one := range tools {
		server, tool, ok := strings.Cut(one, "/")
		if !ok || server == "" || tool == "" {
			return nil, usageError{fmt.Errorf("--tool must be SERVER/TOOL, for example demo/search_notes, is %q", one)}
		}
		out.Tools = append(out.Tools, &wasmagentv1.ToolRight{Server: server, Tool: tool})
	}
	return out, nil
}

func (t *tool) agentsPrompt() *cobra.Command {
	return &cobra.Command{
		Use: "prompt ID TEXT", Short: "Prompt an agent, and print its answer; with -, read TEXT from standard input",
		Example:           "  " + t.self + " agents prompt ID 'write a.txt hello'",
		Args:              args(cobra.ExactArgs(2)),
		ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			text := given[1]
			if text == "-" {
				var err error
				if text, err = readInput(os.Stdin); err != nil {
					return err
				}
			}
			return t.withAgents(c.Context(), promptTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				return t.promptAgent(ctx, client, &wasmagentv1.PromptAgentRequest{AgentId: given[0], Input: text})
			})
		},
	}
}

// promptAgent prints the progress of a prompt on standard error, and the answer on standard output.
func (t *tool) promptAgent(ctx context.Context, client wasmagentv1.AgentServiceClient, req *wasmagentv1.PromptAgentRequest) error {
	stream, err := client.PromptAgent(ctx, req)
	if err != nil {
		return t.explainError(err)
	}
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return t.explainError(err)
		case resp.GetProgress() != nil:
			if err := t.printProgress(resp.GetProgress()); err != nil {
				return err
			}
		case t.json():
			if err := t.printLine(promptAnswer{resp.GetResponse(), resp.GetFinished(), resp.GetWaiting().GetApprovalId(), enum.Name(resp.GetState()), resp.GetTurnCount(), resp.GetIsStopped(), enum.NameOrEmpty(resp.GetStopReason())}); err != nil {
				return err
			}
		case !resp.GetFinished():
			what := ""
			if id := resp.GetWaiting().GetApprovalId(); id != "" {
				what = " waits for people to decide on approval " + id + ", and"
			}
			t.printf("%s%s continues by itself: %s agents show %s", resp.GetAgentId(), what, t.self, resp.GetAgentId())
		default:
			if _, err := fmt.Fprintln(t.out, safetext.Lines(resp.GetResponse())); err != nil {
				return err
			}
		}
	}
}

func (t *tool) printProgress(p *mcpv1.Progress) error {
	if t.json() {
		return t.printLine(struct {
			Progress float64 `json:"progress"`
			Message  string  `json:"message"`
		}{p.GetProgress(), p.GetMessage()})
	}
	return oneLine(t.errOut, "… %s", p.GetMessage())
}

type promptAnswer struct {
	Response   string `json:"response"`
	Finished   bool   `json:"finished"`
	ApprovalID string `json:"approvalId,omitempty"`
	State      string `json:"state"`
	TurnCount  int32  `json:"turnCount"`
	IsStopped  bool   `json:"isStopped"`
	StopReason string `json:"stopReason,omitempty"`
}

type agentRow struct {
	ID         string    `json:"id"`
	State      string    `json:"state"`
	StopReason string    `json:"stopReason,omitempty"`
	Failure    string    `json:"failure,omitempty"`
	Guest      string    `json:"guest"`
	Creator    string    `json:"creator"`
	Turns      int32     `json:"turns"`
	Files      int32     `json:"files"`
	Created    time.Time `json:"created"`
}

func newAgentRow(a *wasmagentv1.Agent) agentRow {
	return agentRow{
		ID: a.GetId(), State: enum.Name(a.GetState()), StopReason: enum.NameOrEmpty(a.GetStopReason()), Failure: a.GetFailure().GetMessage(), Guest: a.GetGuest(),
		Creator: a.GetCreator(), Turns: a.GetTurnCount(), Files: a.GetFileCount(), Created: a.GetCreatedAt().AsTime(),
	}
}

func (t *tool) agentsList() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "list", Short: "List agents that have not ended, newest first", Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			return t.withAgents(c.Context(), requestTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				list, err := allAgents(ctx, client, all)
				if err != nil {
					return t.explainError(err)
				}
				rows, cells := make([]agentRow, 0, len(list)), [][]string(nil)
				for _, a := range list {
					row := newAgentRow(a)
					rows = append(rows, row)
					cells = append(cells, []string{row.ID, strings.TrimSpace(row.State + " " + row.StopReason), row.Guest, row.Creator, strconv.Itoa(int(row.Turns)), strconv.Itoa(int(row.Files)), row.Created.Local().Format(time.DateTime)})
				}
				if t.json() {
					return t.printJSON(rows)
				}
				return t.table([]string{"ID", "STATE", "GUEST", "CREATOR", "TURNS", "FILES", "CREATED"}, cells)
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also list ended agents")
	return c
}

// allAgents returns the agents on all pages of the list. If ended is true, the list includes ended agents.
func allAgents(ctx context.Context, client wasmagentv1.AgentServiceClient, ended bool) (out []*wasmagentv1.Agent, _ error) {
	req := &wasmagentv1.ListAgentsRequest{PageSize: maxPage}
	if ended {
		for n := range wasmagentv1.AgentState_name {
			if n != 0 {
				req.States = append(req.States, wasmagentv1.AgentState(n))
			}
		}
		slices.Sort(req.States)
	}
	for {
		resp, err := client.ListAgents(ctx, req)
		if err != nil {
			return nil, err
		}
		out = append(out, resp.GetAgents()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return out, nil
		}
	}
}

func (t *tool) agentsShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Print an agent's conversation, todos and use of models", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			return t.withAgents(c.Context(), requestTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				state, err := client.GetState(ctx, &wasmagentv1.GetStateRequest{AgentId: given[0]})
				if err != nil {
					return t.explainError(err)
				}
				for token := state.GetNextPageToken(); token != ""; {
					more, err := client.GetState(ctx, &wasmagentv1.GetStateRequest{AgentId: given[0], PageToken: token})
					if err != nil {
						return t.explainError(err)
					}
					state.GetState().Messages = append(state.GetState().GetMessages(), more.GetState().GetMessages()...)
					if token = more.GetNextPageToken(); len(more.GetState().GetMessages()) == 0 {
						break
					}
				}
				todos, err := client.ListTodos(ctx, &wasmagentv1.ListTodosRequest{AgentId: given[0]})
				if err != nil {
					return t.explainError(err)
				}
				return t.printAgent(state, todos.GetTodos())
			})
		},
	}
}

func (t *tool) printAgent(state *wasmagentv1.GetStateResponse, todos []*wasmagentv1.Todo) error {
	row := newAgentRow(state.GetInfo())
	if t.json() {
		type entry struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		}
		out := struct {
			agentRow
			Messages []entry `json:"messages"`
			Todos    []entry `json:"todos"`
			Fuel     int64   `json:"fuel"`
			Effects  int64   `json:"effects"`
		}{agentRow: row, Messages: []entry{}, Todos: []entry{}, Fuel: state.GetUsage().GetFuel(), Effects: state.GetUsage().GetEffects()}
		for _, m := range state.GetState().GetMessages() {
			out.Messages = append(out.Messages, entry{enum.Name(m.GetRole()), m.GetContent()})
		}
		for _, todo := range todos {
			out.Todos = append(out.Todos, entry{enum.Name(todo.GetStatus()), todo.GetContent()})
		}
		return t.printJSON(out)
	}
	t.printf("%s  %s %s  guest %s, created by %s", row.ID, row.State, row.StopReason, row.Guest, row.Creator)
	if row.Failure != "" {
		t.printf("failed: %s", row.Failure)
	}
	t.printf("%d turns, %d files, %d effects, %d instructions", row.Turns, row.Files, state.GetUsage().GetEffects(), state.GetUsage().GetFuel())
	for _, right := range state.GetManifest().GetTools() {
		t.printf("may call %s/%s", right.GetServer(), right.GetTool())
	}
	if waiting := state.GetInfo().GetWaiting(); waiting.GetApprovalId() != "" {
		t.printf("waits for people to decide on approval %s", waiting.GetApprovalId())
	}
	for _, todo := range todos {
		t.printf("todo  %-11s %s", enum.Name(todo.GetStatus()), todo.GetContent())
	}
	for _, m := range state.GetState().GetMessages() {
		// All lines of a message except the first are indented, so that they can't be mistaken for output of this command.
		text := strings.ReplaceAll(safetext.Lines(m.GetContent()), "\n", "\n  ")
		if _, err := fmt.Fprintf(t.out, "\n%s:\n  %s\n", enum.Name(m.GetRole()), text); err != nil {
			return err
		}
	}
	return nil
}

func (t *tool) agentsFiles() *cobra.Command {
	return &cobra.Command{
		Use: "files ID", Short: "List an agent's files", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			return t.withAgents(c.Context(), requestTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
				type file struct {
					Path   string `json:"path"`
					Bytes  int32  `json:"bytes"`
					SHA256 string `json:"sha256"`
				}
				all, rows := []file{}, [][]string(nil)
				for req := (&wasmagentv1.ListFilesRequest{AgentId: given[0], PageSize: maxPage}); ; {
					resp, err := client.ListFiles(ctx, req)
					if err != nil {
						return t.explainError(err)
					}
					for _, f := range resp.GetFiles() {
						all = append(all, file{f.GetPath(), f.GetSizeBytes(), f.GetSha256()})
						rows = append(rows, []string{strconv.Itoa(int(f.GetSizeBytes())), f.GetSha256()[:12], f.GetPath()})
					}
					if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
						break
					}
				}
				if t.json() {
					return t.printJSON(all)
				}
				return t.table([]string{"BYTES", "SHA256", "PATH"}, rows)
			})
		},
	}
}

func (t *tool) agentsResume() *cobra.Command {
	var turns int32
	var snapshot string
	c := &cobra.Command{
		Use: "resume ID", Short: "Continue an agent that was stopped, has failed or was terminated, or return it to a snapshot", Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			req := &wasmagentv1.ResumeAgentRequest{AgentId: given[0]}
			if c.Flags().Changed("max-turns") {
				req.MaxTurns = &turns
			}
			if snapshot != "" {
				req.SnapshotId = &snapshot
			}
			return t.changeState(c.Context(), func(ctx context.Context, client wasmagentv1.AgentServiceClient) (*wasmagentv1.Agent, error) {
				resp, err := client.ResumeAgent(ctx, req)
				return resp.GetAgent(), err
			})
		},
	}
	c.Flags().StringVar(&snapshot, "snapshot", "", "the snapshot to return to")
	c.Flags().Int32Var(&turns, "max-turns", 0, "the new maximum of turns in total")
	return c
}

func (t *tool) changeStateCommand(use, short string, move func(context.Context, wasmagentv1.AgentServiceClient, string) (*wasmagentv1.Agent, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: args(cobra.ExactArgs(1)), ValidArgsFunction: t.completeAgent,
		RunE: func(c *cobra.Command, given []string) error {
			return t.changeState(c.Context(), func(ctx context.Context, client wasmagentv1.AgentServiceClient) (*wasmagentv1.Agent, error) {
				return move(ctx, client, given[0])
			})
		},
	}
}

func (t *tool) changeState(ctx context.Context, move func(context.Context, wasmagentv1.AgentServiceClient) (*wasmagentv1.Agent, error)) error {
	return t.withAgents(ctx, requestTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
		a, err := move(ctx, client)
		if err != nil {
			return t.explainError(err)
		}
		row := newAgentRow(a)
		if t.json() {
			return t.printJSON(row)
		}
		t.printf("%s is %s", row.ID, strings.TrimSpace(row.State+" "+row.StopReason))
		return nil
	})
}

func stopAgent(ctx context.Context, client wasmagentv1.AgentServiceClient, id string) (*wasmagentv1.Agent, error) {
	resp, err := client.StopAgent(ctx, &wasmagentv1.StopAgentRequest{AgentId: id})
	return resp.GetAgent(), err
}

func terminateAgent(ctx context.Context, client wasmagentv1.AgentServiceClient, id string) (*wasmagentv1.Agent, error) {
	resp, err := client.TerminateAgent(ctx, &wasmagentv1.TerminateAgentRequest{AgentId: id})
	return resp.GetAgent(), err
}

func resetAgent(ctx context.Context, client wasmagentv1.AgentServiceClient, id string) (*wasmagentv1.Agent, error) {
	if _, err := client.ResetAgent(ctx, &wasmagentv1.ResetAgentRequest{AgentId: id}); err != nil {
		return nil, err
	}
	state, err := client.GetState(ctx, &wasmagentv1.GetStateRequest{AgentId: id})
	return state.GetInfo(), err
}

func (t *tool) completeAgent(c *cobra.Command, given []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	_ = t.withAgents(c.Context(), requestTimeout, func(ctx context.Context, client wasmagentv1.AgentServiceClient) error {
		list, err := allAgents(ctx, client, true)
		for _, a := range list {
			ids = append(ids, a.GetId())
		}
		return err
	})
	return ids, cobra.ShellCompDirectiveNoFileComp
}

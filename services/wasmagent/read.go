package wasmagent

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

const (
	pageSize = 100
	// maxResponseBytes limits the size of a response, in bytes. maxStateBytes is the lower limit that GetState applies if
	// the request sets no page size.
	maxStateBytes    = 1 << 20
	maxResponseBytes = 3 << 20
)

var builtinTools = []wasmagentv1.SandboxTool{
	wasmagentv1.SandboxTool_SANDBOX_TOOL_READ_FILE, wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_FILE, wasmagentv1.SandboxTool_SANDBOX_TOOL_EDIT_FILE,
	wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_TODOS, wasmagentv1.SandboxTool_SANDBOX_TOOL_LIST_FILES,
}

func progressMessage(n float64, text string) *mcpv1.Progress {
	return &mcpv1.Progress{Progress: n, Message: text}
}

// pageOf returns a page of a list, and the token for the next page. The token of a page is the offset at which the page
// begins.
func pageOf[T any](all []T, token string, size int32) (part []T, next string, err error) {
	from := 0
	if token != "" {
		if from, err = strconv.Atoi(token); err != nil || from < 0 || from > len(all) {
			return nil, "", fmt.Errorf("%.64q %w", token, errPageToken)
		}
	}
	n := int(size)
	if n == 0 {
		n = pageSize
	}
	part = all[from:min(len(all), from+n)]
	if from+len(part) < len(all) {
		next = strconv.Itoa(from + len(part))
	}
	return part, next, nil
}

// ListAgents implements wasmagentv1.AgentServiceServer. A page continues after the last agent of the previous page,
// even if agents were created or ended between the two requests. An agent whose turn runs in this process is listed
// with its current state.
func (s *Service) ListAgents(ctx context.Context, req *wasmagentv1.ListAgentsRequest) (*wasmagentv1.ListAgentsResponse, error) {
	caller := actingPrincipal(ctx)
	filter := store.Filter{Tenant: caller.GetTenant(), States: req.GetStates(), Limit: int(cmp.Or(req.GetPageSize(), pageSize)) + 1}
	if !isOperator(caller) && caller.GetRole() != authv1.TokenRole_TOKEN_ROLE_VIEWER {
		filter.Principal = caller
	}
	if token := req.GetPageToken(); token != "" {
		var err error
		if filter.Before, err = strconv.ParseInt(token, 10, 64); err != nil || filter.Before < 1 {
			return nil, toStatus(fmt.Errorf("%.64q %w", token, errPageToken))
		}
	}
	rows, count, err := s.store.List(ctx, filter)
	if err != nil {
		return nil, toStatus(err)
	}
	size, bytes := filter.Limit-1, 0
	resp := &wasmagentv1.ListAgentsResponse{Count: int32(count)}
	var last int64
	if len(rows) == filter.Limit { // there is a next page, even if some rows are omitted below
		rows = rows[:size]
		resp.NextPageToken = strconv.FormatInt(rows[size-1].Position, 10)
	}
	for _, a := range s.agentEntries(caller, req.GetStates(), filter.Before, rows) {
		if resp.NextPageToken != "" && a.position < rows[len(rows)-1].Position { // the agent belongs to a later page
			break
		}
		if bytes > 0 && bytes+proto.Size(a.Agent) > maxResponseBytes {
			resp.NextPageToken = strconv.FormatInt(last, 10)
			break
		}
		resp.Agents = append(resp.Agents, a.Agent)
		last, bytes = a.position, bytes+proto.Size(a.Agent)
	}
	return resp, nil
}

type agentEntry struct {
	*wasmagentv1.Agent
	position int64
}

// agentEntries returns agents with their current states, newest first. It returns the stored agents in rows, and the
// agents that have a turn in this process. It omits agents whose current states are not among the given states. If no
// states are given, agentEntries returns only agents in rows, and omits terminated agents.
func (s *Service) agentEntries(caller *identityv1.Principal, states []wasmagentv1.AgentState, before int64, rows []*store.Row) (out []agentEntry) {
	running := make(map[string]agentEntry)
	for _, a := range s.agents.withTurns() {
		running[a.ID] = agentEntry{a.Proto(), a.Position()}
	}
	for _, row := range rows {
		entry := agentEntry{s.agentInfo(row.Record), row.Position}
		if current, ok := running[row.GetId()]; ok {
			entry = current
			delete(running, row.GetId())
		} else if row.Turn != store.NoTurn {
			entry.State = wasmagentv1.AgentState_AGENT_STATE_RUNNING
		}
		if isSelected(states, entry.GetState()) {
			out = append(out, entry)
		}
	}
	for _, a := range s.agents.withTurns() {
		if current, ok := running[a.ID]; ok && len(states) > 0 && isSelected(states, current.GetState()) && canSee(caller, a.Creator) && (before == 0 || current.position < before) {
			out = append(out, current)
		}
	}
	slices.SortFunc(out, func(a, b agentEntry) int { return cmp.Compare(b.position, a.position) })
	return out
}

func isSelected(states []wasmagentv1.AgentState, state wasmagentv1.AgentState) bool {
	if len(states) == 0 {
		return state != wasmagentv1.AgentState_AGENT_STATE_TERMINATED
	}
	return slices.Contains(states, state)
}

// ListFiles implements wasmagentv1.AgentServiceServer.
func (s *Service) ListFiles(ctx context.Context, req *wasmagentv1.ListFilesRequest) (*wasmagentv1.ListFilesResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	all, err := a.ListFiles("")
	if err != nil {
		return nil, toStatus(err)
	}
	part, next, err := pageOf(all, req.GetPageToken(), req.GetPageSize())
	if err != nil {
		return nil, toStatus(err)
	}
	info := a.Proto()
	return &wasmagentv1.ListFilesResponse{Tools: builtinTools, FileCount: info.GetFileCount(), TurnCount: info.GetTurnCount(), Files: agent.FileProtos(part), NextPageToken: next}, nil
}

// GetState implements wasmagentv1.AgentServiceServer.
func (s *Service) GetState(ctx context.Context, req *wasmagentv1.GetStateRequest) (*wasmagentv1.GetStateResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	conversation := a.Conversation()
	size := req.GetPageSize()
	if size == 0 {
		size = math.MaxInt16
	}
	part, next, err := pageOf(conversation.GetMessages(), req.GetPageToken(), size)
	if err != nil {
		return nil, toStatus(err)
	}
	most := maxStateBytes
	if req.GetPageSize() > 0 {
		most = maxResponseBytes
	}
	if fitting := prefixWithin(part, most); len(fitting) < len(part) {
		from, _ := strconv.Atoi(req.GetPageToken())
		part, next = fitting, strconv.Itoa(from+len(fitting))
	}
	conversation.Messages = part
	return &wasmagentv1.GetStateResponse{
		AgentId: a.ID, State: conversation, NextPageToken: next, Info: a.Proto(), Manifest: a.Manifest, Grants: a.Grants(),
		Limits: a.Limits.Proto(), Usage: a.Usage(), Snapshots: a.Snapshots(),
	}, nil
}

// prefixWithin returns the longest prefix of messages whose total size does not exceed most, in bytes. It returns at
// least one message, even if that message is larger.
func prefixWithin[M proto.Message](messages []M, most int) []M {
	bytes := 0
	for i, m := range messages {
		if bytes += proto.Size(m); bytes > most && i > 0 {
			return messages[:i]
		}
	}
	return messages
}

// ListTodos implements wasmagentv1.AgentServiceServer.
func (s *Service) ListTodos(ctx context.Context, req *wasmagentv1.ListTodosRequest) (*wasmagentv1.ListTodosResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	return &wasmagentv1.ListTodosResponse{AgentId: a.ID, Todos: a.Todos()}, nil
}

// ListTools implements wasmagentv1.AgentServiceServer.
func (s *Service) ListTools(ctx context.Context, req *wasmagentv1.ListToolsRequest) (*wasmagentv1.ListToolsResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	return &wasmagentv1.ListToolsResponse{AgentId: a.ID, Tools: builtinTools, Rights: a.Rights().Union(time.Now()).GetTools()}, nil
}

// GetTurnCount implements wasmagentv1.AgentServiceServer.
func (s *Service) GetTurnCount(ctx context.Context, req *wasmagentv1.GetTurnCountRequest) (*wasmagentv1.GetTurnCountResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	return &wasmagentv1.GetTurnCountResponse{AgentId: a.ID, TurnCount: a.Proto().GetTurnCount(), MaxTurns: int32(a.CurrentMaxTurns())}, nil
}

// GetStopStatus implements wasmagentv1.AgentServiceServer.
func (s *Service) GetStopStatus(ctx context.Context, req *wasmagentv1.GetStopStatusRequest) (*wasmagentv1.GetStopStatusResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	info := a.Proto()
	return &wasmagentv1.GetStopStatusResponse{AgentId: a.ID, IsStopped: info.GetIsStopped(), State: info.GetState(), StopReason: info.GetStopReason()}, nil
}

// ExportAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) ExportAgent(ctx context.Context, req *wasmagentv1.ExportAgentRequest) (*wasmagentv1.ExportAgentResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	full := req.GetDepth() == wasmagentv1.ExportDepth_EXPORT_DEPTH_FULL
	if req.ArchiveDigest != nil && !full {
		return nil, toStatus(errArchiveDepth)
	}
	resp := new(wasmagentv1.ExportAgentResponse)
	if full {
		if resp.Archive, err = s.exportArchive(ctx, a, req); err != nil || req.ArchiveDigest != nil {
			return resp, toStatus(err)
		}
	}
	state := &wasmagentv1.ExportAgentResponse{AgentState: a.Conversation(), Tools: builtinTools, Todos: a.Todos(), Info: a.Proto()}
	if req.GetDepth() == wasmagentv1.ExportDepth_EXPORT_DEPTH_STATE || full {
		if state.Detail, err = a.ExportDetail(); err != nil {
			return nil, toStatus(err)
		}
	}
	if full && proto.Size(state) > maxResponseBytes-maxArchivePart {
		state = &wasmagentv1.ExportAgentResponse{Info: a.Proto()} // the archive contains everything else
	}
	state.Archive = resp.Archive
	resp = state
	if proto.Size(resp) > maxResponseBytes {
		return nil, toStatus(errExportTooLarge)
	}
	return resp, nil
}

package wasmagent

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/module"
)

const (
	// pageSize is how many things a page has where nobody says.
	pageSize = 100
	// maxState and maxExport bound what is answered, in bytes.
	maxState  = 1 << 20
	maxExport = 3 << 20
)

// sandbox are the tools of every agent's sandbox.
var sandbox = []wasmagentv1.SandboxTool{
	wasmagentv1.SandboxTool_SANDBOX_TOOL_READ_FILE, wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_FILE, wasmagentv1.SandboxTool_SANDBOX_TOOL_EDIT_FILE,
	wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_TODOS, wasmagentv1.SandboxTool_SANDBOX_TOOL_LIST_FILES,
}

func progress(n float64, text string) *mcpv1.Progress {
	return &mcpv1.Progress{Progress: n, Message: text}
}

// page cuts a page out of a list that is gone on with by place.
func page[T any](all []T, token string, size int32) (part []T, next string, err error) {
	from := 0
	if token != "" {
		if from, err = strconv.Atoi(token); err != nil || from < 0 || from > len(all) {
			return nil, "", fmt.Errorf("%.64q %w", token, errPage)
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

// ListAgents implements wasmagentv1.AgentServiceServer. A page goes on behind the agent at
// which the last one ended, whatever was made or ended since.
func (s *Service) ListAgents(ctx context.Context, req *wasmagentv1.ListAgentsRequest) (*wasmagentv1.ListAgentsResponse, error) {
	before := int64(math.MaxInt64)
	if token := req.GetPageToken(); token != "" {
		var err error
		if before, err = strconv.ParseInt(token, 10, 64); err != nil {
			return nil, toStatus(fmt.Errorf("%.64q %w", token, errPage))
		}
	}
	size := int(req.GetPageSize())
	if size == 0 {
		size = pageSize
	}
	resp := new(wasmagentv1.ListAgentsResponse)
	var last int64
	bytes := 0
	for _, a := range s.sorted() {
		if !sees(acting(ctx), a.Agent) {
			continue
		}
		now := a.Proto()
		if !picked(req.GetStates(), now.GetState()) {
			continue
		}
		resp.Count++
		switch {
		case a.place >= before:
		case len(resp.GetAgents()) < size && resp.GetNextPageToken() == "" && (bytes == 0 || bytes+proto.Size(now) < maxExport):
			resp.Agents = append(resp.Agents, now)
			last, bytes = a.place, bytes+proto.Size(now)
		default:
			resp.NextPageToken = strconv.FormatInt(last, 10)
		}
	}
	return resp, nil
}

func picked(states []wasmagentv1.AgentState, at wasmagentv1.AgentState) bool {
	if len(states) == 0 {
		return at != wasmagentv1.AgentState_AGENT_STATE_TERMINATED
	}
	return slices.Contains(states, at)
}

// ListFiles implements wasmagentv1.AgentServiceServer.
func (s *Service) ListFiles(ctx context.Context, req *wasmagentv1.ListFilesRequest) (*wasmagentv1.ListFilesResponse, error) {
	a, err := s.find(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	all, err := a.List("")
	if err != nil {
		return nil, toStatus(err)
	}
	part, next, err := page(all, req.GetPageToken(), req.GetPageSize())
	if err != nil {
		return nil, toStatus(err)
	}
	now := a.Proto()
	return &wasmagentv1.ListFilesResponse{Tools: sandbox, FileCount: now.GetFileCount(), TurnCount: now.GetTurnCount(), Files: listed(part), NextPageToken: next}, nil
}

func listed(list []files.File) (out []*wasmagentv1.AgentFile) {
	for _, f := range list {
		out = append(out, &wasmagentv1.AgentFile{Path: f.Path, SizeBytes: int32(f.Size), Sha256: f.SHA256, ModifiedAt: timestamppb.New(f.Modified)})
	}
	return out
}

// GetState implements wasmagentv1.AgentServiceServer.
func (s *Service) GetState(ctx context.Context, req *wasmagentv1.GetStateRequest) (*wasmagentv1.GetStateResponse, error) {
	a, err := s.find(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	talk := a.Conversation()
	size := req.GetPageSize()
	if size == 0 {
		size = math.MaxInt16
	}
	part, next, err := page(talk.GetMessages(), req.GetPageToken(), size)
	if err != nil {
		return nil, toStatus(err)
	}
	most := maxState
	if req.GetPageSize() > 0 {
		most = maxExport
	}
	if kept := fit(part, most); len(kept) < len(part) {
		from, _ := strconv.Atoi(req.GetPageToken())
		part, next = kept, strconv.Itoa(from+len(kept))
	}
	talk.Messages = part
	return &wasmagentv1.GetStateResponse{
		AgentId: a.ID, State: talk, NextPageToken: next, Info: a.Proto(), Manifest: a.Rights.Manifest(), Limits: limits(a.Agent), Usage: a.Usage(),
	}, nil
}

// fit are as many messages as have so many bytes, but one at least.
func fit[M proto.Message](messages []M, most int) []M {
	bytes := 0
	for i, m := range messages {
		if bytes += proto.Size(m); bytes > most && i > 0 {
			return messages[:i]
		}
	}
	return messages
}

func limits(a *agent.Agent) *wasmagentv1.Limits {
	return &wasmagentv1.Limits{
		MemoryMib: new(int32(a.Limits.Memory >> 20)), FuelMillions: new(int32(a.Limits.Fuel / 1_000_000)),
		EffectsPerTurn: new(int32(a.Limits.Effects)), Deadline: durationpb.New(a.Limits.Deadline),
	}
}

// ListTodos implements wasmagentv1.AgentServiceServer.
func (s *Service) ListTodos(ctx context.Context, req *wasmagentv1.ListTodosRequest) (*wasmagentv1.ListTodosResponse, error) {
	a, err := s.find(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	return &wasmagentv1.ListTodosResponse{AgentId: a.ID, Todos: a.Todos()}, nil
}

// ListTools implements wasmagentv1.AgentServiceServer.
func (s *Service) ListTools(ctx context.Context, req *wasmagentv1.ListToolsRequest) (*wasmagentv1.ListToolsResponse, error) {
	a, err := s.find(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	return &wasmagentv1.ListToolsResponse{AgentId: a.ID, Tools: sandbox}, nil
}

// GetTurnCount implements wasmagentv1.AgentServiceServer.
func (s *Service) GetTurnCount(ctx context.Context, req *wasmagentv1.GetTurnCountRequest) (*wasmagentv1.GetTurnCountResponse, error) {
	a, err := s.find(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	return &wasmagentv1.GetTurnCountResponse{AgentId: a.ID, TurnCount: a.Proto().GetTurnCount(), MaxTurns: int32(a.MaxTurnsNow())}, nil
}

// GetStopStatus implements wasmagentv1.AgentServiceServer.
func (s *Service) GetStopStatus(ctx context.Context, req *wasmagentv1.GetStopStatusRequest) (*wasmagentv1.GetStopStatusResponse, error) {
	a, err := s.find(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	now := a.Proto()
	return &wasmagentv1.GetStopStatusResponse{AgentId: a.ID, IsStopped: now.GetIsStopped(), State: now.GetState(), StopReason: now.GetStopReason()}, nil
}

// ExportAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) ExportAgent(ctx context.Context, req *wasmagentv1.ExportAgentRequest) (*wasmagentv1.ExportAgentResponse, error) {
	a, err := s.find(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if req.GetDepth() == wasmagentv1.ExportDepth_EXPORT_DEPTH_FULL || req.ArchiveDigest != nil {
		return nil, toStatus(errDepth)
	}
	resp := &wasmagentv1.ExportAgentResponse{AgentState: a.Conversation(), Tools: sandbox, Todos: a.Todos(), Info: a.Proto()}
	if req.GetDepth() == wasmagentv1.ExportDepth_EXPORT_DEPTH_STATE {
		all, err := a.List("")
		if err != nil {
			return nil, toStatus(err)
		}
		resp.Detail = &wasmagentv1.ExportedState{
			Manifest: a.Rights.Manifest(), Limits: limits(a.Agent), Usage: a.Usage(), Files: listed(all), MeterVersion: module.MeterVersion, AbiVersion: engine.ABIVersion,
		}
	}
	if proto.Size(resp) > maxExport {
		return nil, toStatus(errTooLarge)
	}
	return resp, nil
}

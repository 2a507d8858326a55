package wasmagent

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

const (
	// maxPendingProgress limits how many progress messages of a prompt can wait to be sent to the caller.
	maxPendingProgress = 64

	// defaultGuest and modelGuest are used if a request names no guest. An agent with a model gets modelGuest, and an
	// agent without a model gets defaultGuest.
	defaultGuest = "script"
	modelGuest   = "agent"
	// defaultMaxTurns limits the number of turns if the request sets no limit.
	defaultMaxTurns = 50
)

var (
	// defaultLimits contains the limits of an agent if the request sets none. A request can only lower them.
	defaultLimits    = agent.Limits{Memory: guestMemory, Fuel: 20_000_000_000, Effects: 1000, Deadline: 30 * time.Second}
	defaultFileRight = &wasmagentv1.FileRight{Bytes: 8 << 20, Count: 1000}
)

// actingPrincipal returns the principal on whose behalf a request is made. If the caller is a person, this is the
// caller. Otherwise, it is the principal that the calling service has sent.
func actingPrincipal(ctx context.Context) *identityv1.Principal {
	caller := authn.CallerOf(ctx)
	if caller.Person != nil {
		return caller.Person
	}
	return caller.Principal
}

func isOperator(p *identityv1.Principal) bool {
	return p.GetRole() == authv1.TokenRole_TOKEN_ROLE_OPERATOR
}

// canSee reports whether p may see the agents that creator has created. This is the case if p is the creator, is in the
// creator's delegation chain, or is an operator or viewer of the same tenant. If an agent uses the connections of a
// person, only agents that use the same person's connections can see it. A credential that is restricted to some
// servers does not give access to an agent that may use other servers. A credential that lacks an OAuth scope of the
// creator does not give access to the agent, because the agent has the creator's scopes.
func canSee(p, creator *identityv1.Principal) bool {
	if p.GetTenant() != creator.GetTenant() {
		return false
	}
	if isOperator(p) || p.GetRole() == authv1.TokenRole_TOKEN_ROLE_VIEWER {
		return true
	}
	for _, c := range append([]*identityv1.Principal{creator}, creator.GetChain()...) {
		if c.GetSubject() == p.GetSubject() && c.GetAgent() == p.GetAgent() {
			if !canUsePerson(p, creator) {
				return false
			}
			lacks := func(scope string) bool { return !slices.Contains(p.GetScopes(), scope) }
			return mayUseServersOf(p, creator) && !slices.ContainsFunc(c.GetScopes(), lacks)
		}
	}
	return false
}

// canUsePerson reports whether p may make an agent of creator use its person's connections to servers. This is the case
// if p acts for this person, or if the agent has no person. The role of p is ignored.
func canUsePerson(p, creator *identityv1.Principal) bool {
	person := principal.ActsFor(creator)
	return person == (principal.Key{}) || person == principal.ActsFor(p)
}

// findAgentToUse is like findAgent, but for a caller that makes the agent act or changes what it acts on. If the agent
// uses the connections of a person, only callers that act for this person may do so, even if they are operators.
// Otherwise the agent would use the person's accounts for another caller.
func (s *Service) findAgentToUse(ctx context.Context, id string) (*agent.Agent, error) {
	a, err := s.findAgent(ctx, id)
	if err == nil && !canUsePerson(actingPrincipal(ctx), a.Creator) {
		return nil, toStatus(fmt.Errorf("%w %s: let %[2]s use it, or copy it into an agent of your own with sluice agents fork %s", errPersonDiffers, principal.ActsFor(a.Creator).Subject, id))
	}
	return a, err
}

// mayUseServersOf reports whether the credential of p gives access to all servers that an agent of creator may use.
// Without this check, p could let the agent call servers that p itself may not call.
func mayUseServersOf(p, creator *identityv1.Principal) bool {
	for _, mine := range append([]*identityv1.Principal{p}, p.GetChain()...) {
		if len(mine.GetServers()) == 0 {
			continue
		}
		limited := func(c *identityv1.Principal) bool {
			return len(c.GetServers()) > 0 && !slices.ContainsFunc(c.GetServers(), func(name string) bool { return !slices.Contains(mine.GetServers(), name) })
		}
		if !slices.ContainsFunc(append([]*identityv1.Principal{creator}, creator.GetChain()...), limited) {
			return false
		}
	}
	return true
}

// findAgent returns an agent that the caller may see. If there is no such agent or the caller may not see it, findAgent
// returns errAgentUnknown.
func (s *Service) findAgent(ctx context.Context, id string) (*agent.Agent, error) {
	a, err := s.agents.get(ctx, id)
	switch {
	case errors.Is(err, store.ErrUnknown):
		return nil, toStatus(errAgentUnknown)
	case err != nil:
		s.log.WarnContext(ctx, "an agent can't be loaded", "agent", id, "error", err)
		return nil, toStatus(err)
	case !canSee(actingPrincipal(ctx), a.Creator) || a.IsGone(time.Now()):
		return nil, toStatus(errAgentUnknown)
	}
	return a, nil
}

func callerOf(ctx context.Context) agent.Caller {
	caller := actingPrincipal(ctx)
	return agent.Caller{Context: ctx, Subject: caller.GetSubject(), IsOperator: isOperator(caller)}
}

// CreateAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) CreateAgent(ctx context.Context, req *wasmagentv1.CreateAgentRequest) (*wasmagentv1.CreateAgentResponse, error) {
	caller := actingPrincipal(ctx)
	req, template, err := s.applyTemplate(ctx, caller, req)
	if err != nil {
		return nil, toStatus(err)
	}
	guest, model := defaultGuest, cmp.Or(req.GetModel(), s.model)
	switch {
	case req.Guest != nil:
		guest = req.GetGuest()
	case model != "":
		guest = modelGuest
	}
	manifest, limits, err := s.newManifest(ctx, caller, req.GetManifest(), model)
	if err != nil {
		return nil, toStatus(err)
	}
	if req.Guest == nil && model != "" && len(manifest.GetModels()) == 0 {
		manifest.Models = []*wasmagentv1.ModelRight{{Model: model}}
	}
	if err := s.ensureSpace(ctx, principal.Person(caller)); err != nil {
		return nil, toStatus(err)
	}
	digest, err := s.compileGuest(ctx, guest)
	if err != nil {
		return nil, toStatus(err)
	}
	spec := agent.Spec{
		ID: newAgentID(), Creator: proto.CloneOf(caller), Guest: guest, ModuleDigest: digest, Template: template,
		Instructions: req.GetInstructions(), MaxTurns: defaultMaxTurns, Limits: limitsWithin(req.GetLimits()), Files: agent.BoundsOf(manifest), Manifest: manifest, CreatedAt: time.Now(),
		Config: &wasmagentv1.AgentConfig{Instructions: req.Instructions, MaxTurns: req.MaxTurns, Model: req.Model},
	}
	if req.MaxTurns != nil {
		spec.MaxTurns = int(req.GetMaxTurns())
	}
	a, err := agent.New(callerOf(ctx), spec, s.deps(), limits)
	if err != nil {
		return nil, toStatus(err)
	}
	s.agents.add(a)
	resp := &wasmagentv1.CreateAgentResponse{Agent: a.Proto()}
	if template != "" {
		s.gallery.SetActive(principal.Of(caller), template)
		resp.Source = new("gallery")
	}
	return resp, nil
}

func newAgentID() string { return "agent-" + strings.ToLower(rand.Text()) }

func limitsWithin(l *wasmagentv1.Limits) agent.Limits {
	out := defaultLimits
	if l.GetMemoryMib() > 0 {
		out.Memory = min(out.Memory, int64(l.GetMemoryMib())<<20)
	}
	if l.GetFuelMillions() > 0 {
		out.Fuel = min(out.Fuel, int64(l.GetFuelMillions())*1_000_000)
	}
	if l.GetEffectsPerTurn() > 0 {
		out.Effects = min(out.Effects, int(l.GetEffectsPerTurn()))
	}
	if d := l.GetDeadline(); d != nil {
		out.Deadline = min(out.Deadline, d.AsDuration())
	}
	return out
}

// TerminateAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) TerminateAgent(ctx context.Context, req *wasmagentv1.TerminateAgentRequest) (*wasmagentv1.TerminateAgentResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err == nil {
		if a, err = s.retryIfStale(ctx, a, func(a *agent.Agent) error { return a.Terminate(callerOf(ctx)) }); err == nil {
			return &wasmagentv1.TerminateAgentResponse{Agent: a.Proto()}, nil
		}
	}
	// An agent whose state or journal is damaged can still be terminated.
	if reason := rpc.Reason(err); reason == "STATE_LOST" || reason == "JOURNAL_BROKEN" || reason == "STATE_DIFFERS" {
		if info, err := s.terminateDamaged(ctx, req.GetAgentId()); err == nil {
			return &wasmagentv1.TerminateAgentResponse{Agent: info}, nil
		}
	}
	return nil, err
}

// ResetAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) ResetAgent(ctx context.Context, req *wasmagentv1.ResetAgentRequest) (*wasmagentv1.ResetAgentResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	digest, err := s.compileGuest(ctx, a.Guest)
	if err != nil {
		return nil, toStatus(err)
	}
	epoch, err := a.Reset(callerOf(ctx), digest)
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.ResetAgentResponse{AgentId: a.ID, Epoch: int32(epoch)}, nil
}

// StopAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) StopAgent(ctx context.Context, req *wasmagentv1.StopAgentRequest) (*wasmagentv1.StopAgentResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if a, err = s.retryIfStale(ctx, a, func(a *agent.Agent) error { return a.Stop(callerOf(ctx), req.GetReason()) }); err != nil {
		return nil, err
	}
	return &wasmagentv1.StopAgentResponse{Agent: a.Proto()}, nil
}

// ResumeAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) ResumeAgent(ctx context.Context, req *wasmagentv1.ResumeAgentRequest) (*wasmagentv1.ResumeAgentResponse, error) {
	a, err := s.findAgent(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if err := a.Resume(callerOf(ctx), req.GetSnapshotId(), int(req.GetMaxTurns())); err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.ResumeAgentResponse{Agent: a.Proto()}, nil
}

// PromptAgent implements wasmagentv1.AgentServiceServer.
func (s *Service) PromptAgent(req *wasmagentv1.PromptAgentRequest, stream wasmagentv1.AgentService_PromptAgentServer) error {
	ctx := stream.Context()
	// An agent that prompts itself, directly or through agents that it has created, would deadlock.
	if caller := actingPrincipal(ctx); isInChain(agent.Subject(caller.GetTenant(), req.GetAgentId()), caller) {
		return toStatus(errAgentCycle)
	}
	a, err := s.findAgentToUse(ctx, req.GetAgentId())
	if err != nil {
		return err
	}
	if err := s.ensureSpace(ctx, principal.Person(a.Creator)); err != nil {
		return toStatus(err)
	}
	if err := s.ensureAgentModule(ctx, a); err != nil {
		return toStatus(err)
	}
	// A slow caller must not delay the turn, so messages are dropped while the channel is full.
	messages, sent := make(chan *wasmagentv1.PromptAgentResponse, maxPendingProgress), make(chan struct{})
	go func() {
		defer close(sent)
		for resp := range messages {
			_ = stream.Send(resp) // if Send fails, ctx is cancelled
		}
	}()
	steps := 0.
	answer, err := a.Prompt(agent.Prompt{Input: req.GetInput(), Caller: callerOf(ctx), ApprovalWait: s.approvalWait, Progress: func(text string) {
		steps++
		select {
		case messages <- &wasmagentv1.PromptAgentResponse{Progress: progressMessage(steps, text), AgentId: a.ID, State: wasmagentv1.AgentState_AGENT_STATE_RUNNING}:
		default:
		}
	}})
	close(messages)
	<-sent
	s.agents.touch(a)
	if err != nil {
		if errors.Is(err, agent.ErrUnavailable) || errors.Is(err, agent.ErrNotStored) {
			s.log.WarnContext(ctx, "a prompt can't be run", "agent", a.ID, "error", err)
		}
		return toStatus(err)
	}
	info := answer.Agent
	return stream.Send(&wasmagentv1.PromptAgentResponse{
		Response: answer.Text, Finished: !answer.IsParked, AgentId: a.ID, State: info.GetState(), TurnCount: info.GetTurnCount(), IsStopped: info.GetIsStopped(),
		StopReason: info.GetStopReason(), Waiting: info.GetWaiting(),
	})
}

// maxStaleRetries limits how often a change is retried after another process has changed the agent.
const maxStaleRetries = 3

// retryIfStale calls do with an agent. If do fails because another process has changed the agent, retryIfStale loads
// the agent again and repeats the call. It returns the agent that it has passed to the last call.
func (s *Service) retryIfStale(ctx context.Context, a *agent.Agent, do func(a *agent.Agent) error) (*agent.Agent, error) {
	err := do(a)
	for range maxStaleRetries {
		if !errors.Is(err, agent.ErrNotStored) || !s.store.IsShared {
			break
		}
		found, findErr := s.findAgent(ctx, a.ID)
		if findErr != nil {
			return a, findErr
		}
		a, err = found, do(found)
	}
	return a, toStatus(err)
}

// terminateDamaged terminates an agent whose journal or state is damaged. This is the only change that is possible for
// a damaged agent.
func (s *Service) terminateDamaged(ctx context.Context, id string) (*wasmagentv1.Agent, error) {
	row, err := s.store.Get(ctx, id)
	if err != nil || !canSee(actingPrincipal(ctx), row.GetCreator()) {
		return nil, cmp.Or(err, errAgentUnknown)
	}
	until := time.Now().Add(agent.Tombstone)
	if err := s.store.TerminateDamaged(ctx, id, until); err != nil {
		return nil, err
	}
	s.agents.remove(id)
	info := s.agentInfo(row.Record)
	info.State, info.IsStopped, info.RestorableUntil = wasmagentv1.AgentState_AGENT_STATE_TERMINATED, true, timestamppb.New(until)
	return info, nil
}

// Package upstreamtest contains helpers for tests of transports.
package upstreamtest

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Answers returns a memory budget for the answers that a test receives.
func Answers() *limits.Budget {
	all, err := limits.NewBudget(limits.AnswerQuotas())
	if err != nil {
		panic(err)
	}
	return all
}

// Holder returns the owner to which the memory for a principal's answers is charged.
func Holder(key principal.Key) *limits.Owner {
	return &limits.Owner{Accounts: principal.AccountsOfKey(key), Server: "test"}
}

// NoAgents returns an empty map, which means that all agents of the mesh have ended.
func NoAgents(context.Context, string) (map[string]bool, error) { return map[string]bool{}, nil }

// Permit is a permit that calls functions. If Ended is nil, the permit does not expire.
type Permit struct {
	Begin func() error
	Ended func() bool
}

// Renew implements upstream.Permit.
func (p Permit) Renew() error { return p.Begin() }

// HasEnded implements upstream.Permit.
func (p Permit) HasEnded() bool { return p.Ended != nil && p.Ended() }

// Roomy is a transport that gives each request a memory budget for its answer. The gateway's HTTP endpoint also does
// this.
type Roomy struct {
	upstream.Transport

	// All is the budget that all answers share.
	All *limits.Budget
}

// Open implements upstream.Transport.
func (s Roomy) Open(ctx context.Context, key principal.Key, initialize upstream.Request) (upstream.Conn, upstream.Answer, error) {
	if initialize.Room == nil {
		initialize.Room = s.All.Open(Holder(key))
	}
	defer initialize.Room.Close()
	conn, answer, err := s.Transport.Open(ctx, key, initialize)
	if err != nil {
		return nil, answer, err
	}
	return roomyConn{conn, s.All, Holder(key)}, answer, nil
}

type roomyConn struct {
	upstream.Conn

	all *limits.Budget
	of  *limits.Owner
}

// Request implements upstream.Conn.
func (c roomyConn) Request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	req.Room = c.all.Open(c.of)
	defer req.Room.Close()
	return c.Conn.Request(ctx, req, events)
}

package upstream_test

import (
	"context"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// hall is room for the answers of a test.
func hall() *room.Room {
	all, err := room.New(room.Answers())
	if err != nil {
		panic(err)
	}
	return all
}

// holder is whose room a principal's answers take.
func holder(who principal.Key) *room.Holder {
	return &room.Holder{Principal: principal.Key{Tenant: who.Tenant, Subject: who.Subject}, Server: "test"}
}

// roomy gives each request of a server room for its answer, as the edge does.
type roomy struct {
	upstream.Server

	all *room.Room
}

func (s roomy) Open(ctx context.Context, who principal.Key, initialize upstream.Request) (upstream.Conn, upstream.Answer, error) {
	of := holder(who)
	initialize.Room = s.all.Open(of)
	defer initialize.Room.Close()
	conn, answer, err := s.Server.Open(ctx, who, initialize)
	if err != nil {
		return nil, answer, err
	}
	return roomyConn{conn, s.all, of}, answer, nil
}

type roomyConn struct {
	upstream.Conn

	all *room.Room
	of  *room.Holder
}

func (c roomyConn) Request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	req.Room = c.all.Open(c.of)
	defer req.Room.Close()
	return c.Conn.Request(ctx, req, events)
}

package edge_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawh2"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// maxRSS is the maximum resident memory of a mesh in one process, in MiB, while unauthenticated clients attack its gRPC
// port.
const maxRSS = 256

// healthMethod is a method that can be called without a token.
const healthMethod = "/grpc.health.v1.Health/Check"

// Case X2. Unauthenticated clients of the gRPC port can't exhaust the memory, and other clients can still use the port.
func TestGRPCAttacks_UnauthenticatedClientsCannotExhaustTheMesh(t *testing.T) {
	t.Parallel()
	for _, attack := range []struct {
		name  string
		conns int
		do    func(*attacker)
	}{
		{"indexed headers", 1, func(a *attacker) {
			block := append(rawh2.HeaderBlock(healthMethod), rawh2.IndexedHeaderBlock("a", 1, 490_000)...)
			a.repeat(40, func() error { return errorOf(a.Open(block, false)) })
		}},
		{"indexed binary headers", 1, func(a *attacker) {
			block := append(rawh2.HeaderBlock(healthMethod), rawh2.IndexedHeaderBlock("a-bin", 4000, 4000)...)
			a.repeat(40, func() error { return errorOf(a.Open(block, false)) })
		}},
		{"endless header blocks", 4, func(a *attacker) {
			block := append(rawh2.HeaderBlock(healthMethod), rawh2.IndexedHeaderBlock("a", 1, 64<<20)...)
			_, _ = a.Open(block, false)
		}},
		{"endless messages", 32, func(a *attacker) {
			a.repeat(1024, func() error {
				id, err := a.Open(rawh2.HeaderBlock(healthMethod), false)
				if err != nil {
					return err
				}
				return a.SendPartialMessage(id, 8<<20, 60<<10)
			})
		}},
		{"calls with unread responses", 4, func(a *attacker) {
			a.repeat(200_000, func() error {
				return errorOf(a.Open(rawh2.HeaderBlock("/sluice.gateway.v1.GatewayService/GetStatus"), true))
			})
		}},
		{"rapid resets", 4, func(a *attacker) {
			a.repeat(50_000, func() error {
				id, err := a.Open(rawh2.HeaderBlock(healthMethod), false)
				if err != nil {
					return err
				}
				return a.WriteRSTStream(id, http2.ErrCodeCancel)
			})
		}},
		{"settings", 4, func(a *attacker) {
			a.repeat(200_000, func() error { return a.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}) })
		}},
		{"pings", 4, func(a *attacker) {
			a.repeat(200_000, func() error { return a.WritePing(false, [8]byte{}) })
		}},
		{"silence", 2000, func(a *attacker) {}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			p := stack.Start(t, stack.WriteConfig(t, stack.Options{Policy: stack.OpenPolicy}))
			good := gatewayv1.NewGatewayServiceClient(p.Operator(t))
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var all sync.WaitGroup
			held := make(chan net.Conn, attack.conns)
			slots := make(chan struct{}, 16)
			for range attack.conns {
				all.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					c, err := rawh2.Dial(p.GRPC, nil, attack.name == "calls with unread responses")
					if err != nil {
						return // a refused connection is a valid defence
					}
					held <- c
					_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
					attack.do(&attacker{c})
				})
			}
			all.Wait()
			if _, err := good.GetStatus(ctx, &gatewayv1.GetStatusRequest{}); err != nil {
				t.Errorf("the earlier client is affected: %v", err)
			}
			fresh := gatewayv1.NewGatewayServiceClient(p.Operator(t))
			if _, err := fresh.GetStatus(ctx, &gatewayv1.GetStatusRequest{}); err != nil {
				t.Errorf("a new client is affected: %v", err)
			}
			peak := peakRSS(t, p.PID())
			t.Logf("at most %d MiB, %d connections", peak, len(held))
			if peak > maxRSS {
				t.Errorf("the mesh used %d MiB, want at most %d", peak, maxRSS)
			}
			close(held)
			for c := range held {
				_ = c.Close()
			}
		})
	}
}

// attacker is an unauthenticated client's connection.
type attacker struct{ *rawh2.Conn }

// repeat calls the function do n times. It stops early if do returns an error because the server has closed the
// connection.
func (a *attacker) repeat(n int, do func() error) {
	for range n {
		if do() != nil {
			return
		}
	}
}

func errorOf(_ uint32, err error) error { return err }

// peakRSS returns the highest resident memory of a process so far, in MiB.
func peakRSS(t *testing.T, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("this system has no /proc: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("/proc does not have the highest resident memory")
	return 0
}

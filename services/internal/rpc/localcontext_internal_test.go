package rpc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A call inside the process ends in several ways, and Done and Err are called in either order. Their results always
// agree.
func TestInside_DoneAndErrAgree(t *testing.T) {
	t.Parallel()
	client := func(t *testing.T) (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), time.Minute)
	}
	for name, tc := range map[string]struct {
		end  func(in *localContext, cancel context.CancelFunc)
		want error
	}{
		"with its deadline": {func(*localContext, context.CancelFunc) { time.Sleep(time.Minute - maxReservedTime) }, context.DeadlineExceeded},
		"with its client":   {func(_ *localContext, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"with its answer":   {func(in *localContext, _ context.CancelFunc) { in.finish() }, context.Canceled},
	} {
		for order, look := range map[string]func(in *localContext, end func()) error{
			"asked": func(in *localContext, end func()) error {
				end()
				return in.Err()
			},
			"asked, then waited for": func(in *localContext, end func()) error {
				end()
				err := in.Err()
				<-in.Done()
				if again := in.Err(); !errors.Is(again, err) {
					return errors.Join(errors.New("an error that differs from the first"), again)
				}
				return err
			},
			"waited for": func(in *localContext, end func()) error {
				done := in.Done()
				go end()
				<-done
				return in.Err()
			},
			"waited for when it had ended": func(in *localContext, end func()) error {
				end()
				<-in.Done()
				return in.Err()
			},
			"waited for by a context of it": func(in *localContext, end func()) error {
				of, cancel := context.WithCancel(in)
				defer cancel()
				go end()
				<-of.Done()
				return of.Err()
			},
		} {
			t.Run(name+"/"+order, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := client(t)
					defer cancel()
					in, err := newLocalContext(ctx, t.Context())
					if err != nil {
						t.Fatal(err)
					}
					defer in.finish()
					if err := in.Err(); err != nil {
						t.Fatalf("the context ended with %v too early", err)
					}
					if err := look(in, func() { tc.end(in, cancel) }); !errors.Is(err, tc.want) {
						t.Errorf("the context ended with %v, want %v", err, tc.want)
					}
				})
			})
		}
	}
}

// A context is derived from the context of a call inside the process, and ends with it. This needs no goroutine that
// watches for the end; if there were one, the synctest bubble would not end.
func TestInside_DerivedContextNeedsNoGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, err := newLocalContext(context.WithoutCancel(t.Context()), context.WithoutCancel(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		_, cancel := context.WithCancel(in)
		_ = cancel
		synctest.Wait()
	})
}

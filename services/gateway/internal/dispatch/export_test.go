package dispatch

import "github.com/sluice-mesh/sluice/services/gateway/internal/attempt"

// ConfirmOf returns the function that asks the client's user to confirm a call.
func ConfirmOf(x *Exchange, out *Relay) attempt.Confirm { return x.confirm(out) }

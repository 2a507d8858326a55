// Package bench measures the number of calls per second that the mesh forwards. The baseline, called the floor, is Go's
// reverse proxy, which forwards the same calls and makes no decisions. A cell is one path that a call can take, through
// separate processes on loopback. Each round measures every cell once, so that disturbances of the machine affect all
// cells equally. The result for a cell is the ratio of its rate to the floor's rate in the same round.
package bench

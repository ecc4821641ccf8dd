// Cases of an unchanged centrifuge-go against one server: `cases URL json|protobuf GIVEN CASE...`, or `names`.
// Prints one line of JSON for each case: its name, and the error if it failed. GIVEN: `Given` of `sdks.py`, as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/centrifugal/centrifuge-go"
)

const patient = 60 * time.Second

var url, encoding string

var given struct{ Token, Other, Wrong, Expired, Small, Enters, Hall string }

type event struct {
	name    string
	context any
}

func connected(config centrifuge.Config) (*centrifuge.Client, chan event) {
	client, seen := unconnected(config)
	_ = client.Connect()
	return client, seen
}

func unconnected(config centrifuge.Config) (*centrifuge.Client, chan event) {
	config.MinReconnectDelay = 20 * time.Millisecond
	make1 := centrifuge.NewJsonClient
	if encoding == "protobuf" {
		make1 = centrifuge.NewProtobufClient
	}
	client, seen := make1(url, config), make(chan event, 4096)
	client.OnConnected(func(e centrifuge.ConnectedEvent) { seen <- event{"connected", e} })
	client.OnDisconnected(func(e centrifuge.DisconnectedEvent) { seen <- event{"disconnected", e} })
	return client, seen
}

func user() centrifuge.Config { return centrifuge.Config{Token: given.Token} }

// await returns the next event of this name, and drops those before it.
func await(seen chan event, name string) (any, error) {
	late := time.After(patient)
	for {
		select {
		case e := <-seen:
			if e.name == name {
				return e.context, nil
			}
		case <-late:
			return nil, fmt.Errorf("no %s came in time", name)
		}
	}
}

func joined(client *centrifuge.Client, room string, config centrifuge.SubscriptionConfig) (*centrifuge.Subscription, chan event, error) {
	subscription, err := client.NewSubscription(room, config)
	if err != nil {
		return nil, nil, err
	}
	seen := make(chan event, 4096)
	subscription.OnSubscribed(func(e centrifuge.SubscribedEvent) { seen <- event{"subscribed", e} })
	subscription.OnUnsubscribed(func(e centrifuge.UnsubscribedEvent) { seen <- event{"unsubscribed", e} })
	subscription.OnPublication(func(e centrifuge.PublicationEvent) { seen <- event{"publication", e} })
	subscription.OnJoin(func(e centrifuge.JoinEvent) { seen <- event{"join", e.User} })
	subscription.OnLeave(func(e centrifuge.LeaveEvent) { seen <- event{"leave", e.User} })
	if err := subscription.Subscribe(); err != nil {
		return nil, nil, err
	}
	_, err = await(seen, "subscribed")
	return subscription, seen, err
}

func publish(client *centrifuge.Client, room string, numbers ...int) error {
	for _, n := range numbers {
		if _, err := client.Publish(context.Background(), room, []byte(strconv.Itoa(n))); err != nil {
			return err
		}
	}
	return nil
}

func receive(seen chan event, numbers ...int) error {
	for _, n := range numbers {
		context, err := await(seen, "publication")
		if err != nil {
			return err
		}
		if data := string(context.(centrifuge.PublicationEvent).Data); data != strconv.Itoa(n) {
			return fmt.Errorf("%s came in place of %d", data, n)
		}
	}
	return nil
}

func code(err error) uint32 {
	var e *centrifuge.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func connects(string) error {
	client, seen := connected(user())
	defer client.Close()
	_, err := await(seen, "connected")
	return err
}

func publishesAndReceivesInOrder(room string) error {
	client, _ := connected(user())
	defer client.Close()
	_, seen, err := joined(client, room, centrifuge.SubscriptionConfig{})
	if err != nil {
		return err
	}
	if err := publish(client, room, 1, 2, 3, 4, 5); err != nil {
		return err
	}
	return receive(seen, 1, 2, 3, 4, 5)
}

func tellsHistory(room string) error {
	client, _ := connected(user())
	defer client.Close()
	if _, _, err := joined(client, room, centrifuge.SubscriptionConfig{}); err != nil {
		return err
	}
	if err := publish(client, room, 1, 2, 3, 4, 5); err != nil {
		return err
	}
	got := func(options ...centrifuge.HistoryOption) ([]string, centrifuge.HistoryResult, error) {
		result, err := client.History(context.Background(), room, options...)
		data := []string{}
		for _, each := range result.Publications {
			data = append(data, string(each.Data))
		}
		return data, result, err
	}
	data, all, err := got(centrifuge.WithHistoryLimit(100))
	if err != nil || !reflect.DeepEqual(data, []string{"1", "2", "3", "4", "5"}) {
		return fmt.Errorf("all: %v %w", data, err)
	}
	since := &centrifuge.StreamPosition{Offset: all.Publications[2].Offset, Epoch: all.Epoch}
	data, _, err = got(centrifuge.WithHistoryLimit(9), centrifuge.WithHistorySince(since))
	if err != nil || !reflect.DeepEqual(data, []string{"4", "5"}) {
		return fmt.Errorf("since: %v %w", data, err)
	}
	data, _, err = got(centrifuge.WithHistoryLimit(9), centrifuge.WithHistorySince(since), centrifuge.WithHistoryReverse(true))
	if err != nil || !reflect.DeepEqual(data, []string{"2", "1"}) {
		return fmt.Errorf("reverse: %v %w", data, err)
	}
	return nil
}

func recovers(room string, kept bool) error {
	client, _ := connected(user())
	defer client.Close()
	other, _ := connected(user())
	defer other.Close()
	_, seen, err := joined(client, room, centrifuge.SubscriptionConfig{Recoverable: true, Positioned: true})
	if err != nil {
		return err
	}
	if err := errors.Join(publish(other, room, 1), receive(seen, 1), client.Disconnect()); err != nil {
		return err
	}
	missed := 3
	if !kept {
		missed = 300
	}
	for n := 2; n < 2+missed; n++ {
		if err := publish(other, room, n); err != nil {
			return err
		}
	}
	_ = client.Connect()
	context, err := await(seen, "subscribed")
	if err != nil {
		return err
	}
	if back := context.(centrifuge.SubscribedEvent); !back.WasRecovering || back.Recovered != kept {
		return fmt.Errorf("recovered: %v of %v", back.Recovered, kept)
	}
	if kept {
		return receive(seen, 2, 3, 4)
	}
	return errors.Join(publish(other, room, 1000), receive(seen, 1000))
}

func recoversWhatItMissed(room string) error { return recovers(room, true) }

func saysWhenItCannotRecover(room string) error {
	return recovers(given.Small+":"+strings.SplitN(room, ":", 2)[1], false)
}

func unsubscribesAndHearsNoMore(room string) error {
	client, _ := connected(user())
	defer client.Close()
	subscription, seen, err := joined(client, room, centrifuge.SubscriptionConfig{})
	if err != nil {
		return err
	}
	_ = subscription.Unsubscribe()
	if _, err := await(seen, "unsubscribed"); err != nil {
		return err
	}
	if err := publish(client, room, 1); err != nil {
		return err
	}
	if len(seen) > 0 {
		return fmt.Errorf("%v came after the end", <-seen)
	}
	return nil
}

func getsAnErrorForAnUnknownMethod(string) error {
	client, _ := connected(user())
	defer client.Close()
	_, err := client.RPC(context.Background(), "no.such.method", []byte("{}"))
	if code(err) == 104 || code(err) == 108 {
		return nil
	}
	return fmt.Errorf("the answer is %v", err)
}

func sendsToAllTabsOfAUserAndHearsOfEach(string) error {
	client, _ := connected(user())
	defer client.Close()
	heard := [2]chan string{make(chan string, 4096), make(chan string, 4096)}
	for at := range heard {
		tab, seen := connected(centrifuge.Config{Token: given.Other})
		defer tab.Close()
		tab.OnMessage(func(e centrifuge.MessageEvent) { heard[at] <- string(e.Data) })
		if _, err := await(seen, "connected"); err != nil {
			return err
		}
	}
	for n := 1; ; n++ {
		said, err := client.RPC(context.Background(), "muster.send", []byte(fmt.Sprintf(`{"user":"8","data":%d}`, n)))
		if err != nil {
			return err
		}
		if strings.Count(string(said.Data), `"delivered"`) < 2 {
			continue
		}
		wanted := fmt.Sprintf(`{"muster":"direct","user":"7","data":%d}`, n)
		for _, tab := range heard {
			last := ""
			for len(tab) > 0 {
				last = <-tab
			}
			if last != wanted {
				return fmt.Errorf("%s came in place of %s", last, wanted)
			}
		}
		return nil
	}
}

func hearsWhoComesAndWhoLeaves(room string) error {
	one, _ := connected(user())
	defer one.Close()
	two, _ := connected(centrifuge.Config{Token: given.Other})
	defer two.Close()
	hears := func(seen chan event, name, user string) error {
		context, err := await(seen, name)
		if err == nil && context.(string) != user {
			err = fmt.Errorf("%s of %s came in place of %s", name, context, user)
		}
		return err
	}
	_, seen, err := joined(one, room, centrifuge.SubscriptionConfig{JoinLeave: true})
	if err != nil {
		return err
	}
	if err := hears(seen, "join", "7"); err != nil {
		return err
	}
	other, _, err := joined(two, room, centrifuge.SubscriptionConfig{})
	if err != nil {
		return err
	}
	if err := hears(seen, "join", "8"); err != nil {
		return err
	}
	return errors.Join(other.Unsubscribe(), hears(seen, "leave", "8"))
}

func isSubscribedToTheRoomsOfItsToken(room string) error {
	client, _ := unconnected(centrifuge.Config{Token: given.Enters})
	defer client.Close()
	seen := make(chan event, 4096)
	client.OnSubscribed(func(e centrifuge.ServerSubscribedEvent) { seen <- event{"subscribed", e} })
	client.OnPublication(func(e centrifuge.ServerPublicationEvent) {
		var said struct {
			Room string
			N    int
		}
		if json.Unmarshal(e.Data, &said) == nil && said.Room == room {
			seen <- event{"publication", said.N}
		}
	})
	other, _ := connected(centrifuge.Config{Token: given.Other})
	defer other.Close()
	publish := func(first, last int) error {
		for n := first; n <= last; n++ {
			data := []byte(fmt.Sprintf(`{"room":%q,"n":%d}`, room, n))
			if _, err := other.Publish(context.Background(), given.Hall, data); err != nil {
				return err
			}
		}
		return nil
	}
	subscribed := func(recovering, recovered bool) error {
		context, err := await(seen, "subscribed")
		if err != nil {
			return err
		}
		e := context.(centrifuge.ServerSubscribedEvent)
		if e.Channel != given.Hall || e.WasRecovering != recovering || e.Recovered != recovered {
			return fmt.Errorf("subscribed to %s: recovering %v, recovered %v", e.Channel, e.WasRecovering, e.Recovered)
		}
		return nil
	}
	hears := func(numbers ...int) error {
		for _, n := range numbers {
			context, err := await(seen, "publication")
			if err != nil {
				return err
			}
			if context.(int) != n {
				return fmt.Errorf("%d came in place of %d", context, n)
			}
		}
		return nil
	}
	for _, step := range []func() error{
		client.Connect,
		func() error { return subscribed(false, false) },
		func() error { return publish(0, 0) },
		func() error { return hears(0) },
		client.Disconnect,
		func() error { return publish(1, 2) },
		client.Connect,
		func() error { return subscribed(true, true) },
		func() error { return hears(1, 2) },
		client.Disconnect,
		func() error { return publish(3, 305) },
		client.Connect,
		func() error { return subscribed(true, false) },
		func() error { return publish(306, 306) },
		func() error { return hears(306) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func isRefusedWithAWrongToken(string) error {
	client, seen := connected(centrifuge.Config{Token: given.Wrong})
	defer client.Close()
	context, err := await(seen, "disconnected")
	if err == nil && context.(centrifuge.DisconnectedEvent).Code != 3500 {
		err = fmt.Errorf("the code is %d", context.(centrifuge.DisconnectedEvent).Code)
	}
	return err
}

func bringsAnotherTokenForOneThatHasExpired(string) error {
	tokens := make(chan string, 2)
	tokens <- given.Expired
	tokens <- given.Token
	client, seen := connected(centrifuge.Config{GetToken: func(centrifuge.ConnectionTokenEvent) (string, error) { return <-tokens, nil }})
	defer client.Close()
	_, err := await(seen, "connected")
	return err
}

func main() {
	url, encoding = os.Args[1], os.Args[2]
	if err := json.Unmarshal([]byte(os.Args[3]), &given); err != nil {
		panic(err)
	}
	wanted := os.Args[4:]
	cases := []struct {
		name string
		run  func(string) error
	}{
		{"connects", connects},
		{"publishes_and_receives_in_order", publishesAndReceivesInOrder},
		{"tells_history", tellsHistory},
		{"recovers_what_it_missed", recoversWhatItMissed},
		{"says_when_it_cannot_recover", saysWhenItCannotRecover},
		{"unsubscribes_and_hears_no_more", unsubscribesAndHearsNoMore},
		{"gets_an_error_for_an_unknown_method", getsAnErrorForAnUnknownMethod},
		{"sends_to_all_tabs_of_a_user_and_hears_of_each", sendsToAllTabsOfAUserAndHearsOfEach},
		{"hears_who_comes_and_who_leaves", hearsWhoComesAndWhoLeaves},
		{"is_subscribed_to_the_rooms_of_its_token", isSubscribedToTheRoomsOfItsToken},
		{"is_refused_with_a_wrong_token", isRefusedWithAWrongToken},
		{"brings_another_token_for_one_that_has_expired", bringsAnotherTokenForOneThatHasExpired},
	}
	names, hangs := []string{}, false
	for _, each := range cases {
		names = append(names, each.name)
		if !slices.Contains(wanted, each.name) {
			continue
		}
		said := map[string]string{"case": each.name}
		if err := each.run(fmt.Sprintf("edge:%s-%d", each.name, time.Now().UnixNano())); err != nil {
			said["error"] = err.Error()
			hangs = strings.Contains(err.Error(), "in time")
		}
		line, _ := json.Marshal(said)
		fmt.Println(string(line))
		if hangs { // the others may hang as well
			return
		}
	}
	if url == "names" {
		line, _ := json.Marshal(names)
		fmt.Println(string(line))
	}
}

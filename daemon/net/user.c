/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/user.h"

#include <stdlib.h>

#include "proto/cleanup.h"

struct list users = LIST_INIT(users);

static void lane_init(struct lane *lane, struct user *user, bool has_connections)
{
	lane->user = user;
	lane->has_connections = has_connections;
	list_init(&lane->closings);
	list_init(&lane->left);
}

struct user *user_get(uid_t uid)
{
	struct user *user;
	list_for_each (user, &users, link) {
		if (user->uid == uid) {
			return user;
		}
	}
	user = calloc(1, sizeof(*user));
	if (!user) {
		return NULL;
	}
	user->uid = uid;
	list_init(&user->place);
	list_init(&user->line);
	list_init(&user->unread);
	lane_init(&user->lanes[FILES], user, false);
	lane_init(&user->lanes[CONNECTIONS], user, true);
	list_insert(&users, &user->link);
	return user;
}

void user_forget(struct user *user)
{
	list_remove(&user->place);
	list_remove(&user->link);
	free(user);
}
